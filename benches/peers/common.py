"""Timing and output as `csa2 bench` does them: the same yardstick, the same statistics, the same JSON keys."""

import argparse
import json
import math
import platform
import sys
import time

import torch

MATMUL = 1024


def arguments(about):
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="threads (default: processor cores)")
    parser.add_argument("--quick", action="store_true", help="two repetitions: shows that everything runs, not how fast")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    return parser


def quantile(values, share):
    values = sorted(values)
    place = share * (len(values) - 1)
    below, above = values[math.floor(place)], values[math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))


class Bench:
    def __init__(self, args):
        torch.set_num_threads(args.threads)
        torch.manual_seed(0)
        self.args = args
        self.repetitions, self.seconds = (2, 0.05) if args.quick else (5, 1.0)
        self.matrices = torch.randn(MATMUL, MATMUL), torch.randn(MATMUL, MATMUL)
        self.results, self.peaks = [], []

    def repeat(self, run, seconds):
        """One warm-up, then repetitions until their count and their time are reached."""
        run()
        times, returned, started = [], [], time.perf_counter()
        while len(times) < self.repetitions or time.perf_counter() - started < seconds:
            start = time.perf_counter()
            result = run()
            times.append(time.perf_counter() - start)
            returned.append(result)
        return times, returned

    def matmul(self):
        return self.repeat(lambda: torch.mm(*self.matrices) is None, 0.0)[0]

    def time(self, operator, case, form, direction, shape, run, flops=None, bytes=None, tokens=None):
        """Times `run`, which may return the seconds of its parts by name. Figures are those of `csa2 bench`."""
        print(f"{operator} {case}, {direction}, {form}", file=sys.stderr, flush=True)
        before = self.matmul()
        times, parts = self.repeat(run, self.seconds)
        after = self.matmul()
        rate = lambda times: 2 * MATMUL**3 / quantile(times, 0.5) / 1e9
        median, matmul = quantile(times, 0.5), rate(before + after)
        per_second = lambda count: None if count is None else count / median / 1e9
        names = parts[0] if isinstance(parts[0], dict) else {}
        self.results.append({
            "operator": operator,
            "case": case,
            "pass": direction,
            "form": form,
            "shape": shape,
            "repetitions": len(times),
            "seconds": {"median": median, "p10": quantile(times, 0.1), "p90": quantile(times, 0.9)},
            "parts": {name: quantile([part[name] for part in parts], 0.5) for name in names},
            "flops": flops,
            "bytes": bytes,
            "gflops_per_second": per_second(flops),
            "gigabytes_per_second": per_second(bytes),
            "matmul_gflops_per_second": matmul,
            "matmul_before": rate(before),
            "matmul_after": rate(after),
            "share_of_matmul": None if flops is None else per_second(flops) / matmul,
            "tokens_per_second": None if tokens is None else tokens / median,
        })

    def print(self):
        if self.args.json:
            run = {
                "program": f"torch {torch.__version__}",
                "backend": "cpu",
                "device": platform.machine(),
                "threads": torch.get_num_threads(),
                "quick": self.args.quick,
                "release": True,
            }
            document = {"run": run, "matmul_size": MATMUL, "results": self.results, "peaks": self.peaks, "ratios": []}
            print(json.dumps(document, indent=2))
            return
        for r in self.results:
            seconds, share = r["seconds"], r["share_of_matmul"]
            line = f"{r['operator']} {r['case']}, {r['pass']}, {r['form']}: {1e3 * seconds['median']:.3f} ms"
            line += f" ({1e3 * seconds['p10']:.3f} to {1e3 * seconds['p90']:.3f})"
            if share is not None:
                line += f", {r['gflops_per_second']:.1f} GFLOP/s, {100 * share:.1f}% of matmul"
            line += f" (matmul {r['matmul_gflops_per_second']:.0f} GFLOP/s)"
            if r["tokens_per_second"] is not None:
                line += f", {r['tokens_per_second']:.0f} tokens/s"
            for name, part in r["parts"].items():
                line += f", {name} {1e3 * part:.1f} ms"
            print(line)
        for p in self.peaks:
            print(f"{p['operator']} {p['case']}, {p['form']}: peak of memory {p['bytes'] / 2**20:.1f} MiB, {p['ratio']:.2f} x "
                  "its inputs, outputs and gradients")

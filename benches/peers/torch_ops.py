"""The operators of `csa2 bench` in eager PyTorch, on the same shapes and with the same JSON keys.

Two forms of each, as one would write them without a kernel of one's own:
  gather  picks the listed entries of every query, then works on those alone: least arithmetic, most copying
  masked  works on every pair of query and entry and masks what is not listed: one large matrix product
"""

import json
import resource
import subprocess
import sys

import torch

from common import Bench, arguments

READOUT = ["batch", "seq", "heads", "dim", "entries", "topk", "window", "ratio"]
INDEX = ["batch", "seq", "index_heads", "index_dim", "entries", "topk", "ratio", "pool_blocks", "pool_size"]
DECODE = ["batch", "heads", "dim", "index_heads", "index_dim", "entries", "topk", "window", "pool_blocks", "pool_size"]


def query(entries, pool=None):
    return dict(zip(DECODE, [1, 8, 128, 8, 64, entries, 512, 128, *(pool or [None, None])]))


# The tables of `csa2 bench`; "long" is measured for memory only, and only when asked for by name.
CASES = {
    "readout": {
        "small": dict(zip(READOUT, [1, 1024, 8, 128, 1024, 64, 128, 1])),
        "wide": dict(zip(READOUT, [1, 2048, 16, 512, 2048, 512, 128, 1])),
        "long": dict(zip(READOUT, [1, 8192, 8, 128, 8192, 512, 128, 1])),
    },
    "select": {
        "whole": dict(zip(INDEX, [1, 4096, 8, 64, 4096, 256, 1, None, None])),
        "pool-32k": dict(zip(INDEX, [1, 1, 8, 64, 32 << 10, 256, 1, 2048, 8])),
        "pool-512k": dict(zip(INDEX, [1, 1, 8, 64, 512 << 10, 256, 1, 2048, 8])),
    },
    "kl": {
        "small": dict(zip(INDEX, [1, 1024, 8, 64, 1024, 64, 1])),
        "long": dict(zip(INDEX, [1, 4096, 8, 64, 4096, 256, 1])),
    },
    "query": {
        "4k": query(4 << 10),
        "16k": query(16 << 10),
        "64k": query(64 << 10),
        "256k": query(256 << 10),
        "4k-pool": query(4 << 10, [2048, 8]),
        "16k-pool": query(16 << 10, [2048, 8]),
        "64k-pool": query(64 << 10, [2048, 8]),
        "256k-pool": query(256 << 10, [2048, 8]),
    },
}


def visible(s, t):
    """Entries that the query in row `t` sees: the queries stand at the end of `entries * ratio` tokens."""
    start = max(s["entries"] * s["ratio"] - s["seq"], 0)
    return min((start + t + 1) // s["ratio"], s["entries"])


def searched(s, t):
    seen, blocks, size = visible(s, t), s.get("pool_blocks"), s.get("pool_size")
    if blocks is None or seen <= blocks * size:
        return seen
    return (blocks - 1) * size + seen - (-(-seen // size) - 1) * size


def lists(s):
    """Different visible entries for every query, ascending, then -1."""
    rows = torch.full((s["batch"], s["seq"], s["topk"]), -1)
    for b in range(s["batch"]):
        for t in range(s["seq"]):
            count = min(visible(s, t), s["topk"])
            rows[b, t, :count] = torch.randperm(visible(s, t))[:count].sort().values
    return rows


def pool(s):
    """Entries of the pool of the only query, its newest block always among them; -1 where it is not full."""
    seen, blocks, size = visible(s, s["seq"] - 1), s["pool_blocks"], s["pool_size"]
    newest = -(-seen // size) - 1
    kept = torch.cat([torch.randperm(newest)[: blocks - 1].sort().values, torch.tensor([newest])])
    entries = (kept[:, None] * size + torch.arange(size)).flatten()
    entries = torch.nn.functional.pad(entries, (0, blocks * size - len(entries)), value=-1)
    return torch.where(entries < seen, entries, -1).expand(s["batch"], 1, -1)


def pick(latents, index):
    """Rows of `latents` [B, N, d] at `index` [B, S, n]: [B, S, n, d]; row 0 where there is none."""
    batch = torch.arange(latents.shape[0])[:, None, None]
    return latents[batch, index.clamp_min(0)]


def softmax_with_sink(logits, sink):
    """Softmax over the last axis of `logits` [B, S, H, n], with a sink in the denominator."""
    column = sink[None, None, :, None].expand(*logits.shape[:3], 1)
    return torch.softmax(torch.cat([logits, column], 3), 3)[..., :-1]


def window_index(rows, queries, width):
    """Window positions [queries, width] of the last `queries` of `rows` rows; -1 before the start."""
    t = torch.arange(rows - queries, rows)[:, None]
    index = t - width + 1 + torch.arange(width)
    return torch.where(index >= 0, index, -1)


def readout_gather(q, window, main, sink, topk, width):
    batch, seq, _, dim = q.shape
    near = window_index(window.shape[1], seq, width).expand(batch, -1, -1)
    entries = torch.cat([pick(window, near), pick(main, topk)], 2)
    listed = torch.cat([near, topk], 2) >= 0
    logits = (q @ entries.mT) * dim**-0.5
    return softmax_with_sink(logits.masked_fill(~listed[:, :, None], float("-inf")), sink) @ entries


def readout_masked(q, window, main, sink, topk, width):
    batch, seq, heads, dim = q.shape
    rows, count = window.shape[1], main.shape[1]
    entries = torch.cat([window, main], 1)
    t, i = torch.arange(rows - seq, rows)[:, None], torch.arange(rows)
    near = ((i <= t) & (i > t - width)).expand(batch, -1, -1)
    # A list's places without an entry mark one column too many, which is cut off.
    far = torch.zeros(batch, seq, count + 1, dtype=torch.bool)
    far = far.scatter(2, torch.where(topk < 0, count, topk), True)[..., :count]
    listed = torch.cat([near, far], 2)[:, :, None]
    logits = (q.reshape(batch, seq * heads, dim) @ entries.mT).view(batch, seq, heads, -1) * dim**-0.5
    weights = softmax_with_sink(logits.masked_fill(~listed, float("-inf")), sink)
    return (weights.view(batch, seq * heads, -1) @ entries).view(q.shape)


def scores_of_all(q, keys, weights):
    batch, seq, heads, dim = q.shape
    products = (q.reshape(batch, seq * heads, dim) @ keys.mT).relu_().view(batch, seq, heads, -1)
    return (products * weights[..., None]).sum(2)


def scores_of_listed(q, keys, weights, index):
    products = (q @ pick(keys, index).mT).relu()
    return (products * weights[..., None]).sum(2)


def best(scores, index, count):
    """The `count` best of `scores`, as ascending entries of `index` (None: their places), -1 at the end."""
    top = scores.topk(min(count, scores.shape[2]), 2, sorted=False)
    chosen = top.indices if index is None else index.gather(2, top.indices)
    big = torch.iinfo(chosen.dtype).max
    chosen = torch.where(top.values == float("-inf"), big, chosen).sort(2).values
    return torch.where(chosen == big, -1, chosen)


def select(q, keys, weights, pooled, hidden, count):
    """Top-K over all entries that are not `hidden`, or over the `pooled` ones."""
    if pooled is None:
        return best(scores_of_all(q, keys, weights).masked_fill(hidden, float("-inf")), None, count)
    scores = scores_of_listed(q, keys, weights, pooled)
    return best(scores.masked_fill(pooled < 0, float("-inf")), pooled, count)


def kl(scores, teacher, index):
    listed = index >= 0
    teacher = teacher.masked_fill(~listed, 0)
    teacher = teacher / teacher.sum(2, keepdim=True).clamp_min(1e-30)
    # Rows without an entry would be all -inf: they count 0 below.
    student = torch.log_softmax(scores.masked_fill(~listed, torch.finfo(scores.dtype).min), 2)
    return torch.xlogy(teacher, teacher).sum(2) - (teacher * student.masked_fill(~listed, 0)).sum(2)


def kl_gather(q, keys, weights, teacher, index):
    return kl(scores_of_listed(q, keys, weights, index), teacher, index)


def kl_masked(q, keys, weights, teacher, index):
    return kl(scores_of_all(q, keys, weights).gather(2, index.clamp_min(0)), teacher, index)


def readout_inputs(s, grad):
    leaf = lambda *dims: torch.randn(*dims, requires_grad=grad)
    b, seq, h, d = s["batch"], s["seq"], s["heads"], s["dim"]
    return leaf(b, seq, h, d), leaf(b, seq, d), leaf(b, s["entries"], d), leaf(h), lists(s), s["window"]


def readout_work(s):
    b, seq, h, d, n, k = (s[name] for name in ["batch", "seq", "heads", "dim", "entries", "topk"])
    selected = sum(min(k, visible(s, t)) for t in range(seq))
    pairs = selected + sum(min(s["window"], t + 1) for t in range(seq))
    query = b * seq * h * d
    bytes = 4 * (2 * query + b * seq * d + b * min(n, selected) * d + h + b * seq * k + b * seq * h)
    gradients = 4 * (2 * query + b * (seq + n) * d + h)
    flops = b * 4 * h * d * pairs
    return (flops, bytes), (flops * 14 // 4, 2 * bytes + gradients)


def both(run):
    output = run()
    output.backward(torch.ones_like(output))


def time_readout(bench, case, s, forms):
    forward, backward = readout_work(s)
    for form, run in [("gather", readout_gather), ("masked", readout_masked)]:
        if form not in forms:
            continue
        inputs = readout_inputs(s, False)
        with torch.no_grad():
            bench.time("readout", case, form, "forward", s, lambda: run(*inputs) is None, *forward)
        if case.startswith("wide"):
            continue
        inputs = readout_inputs(s, True)

        def step():
            for tensor in inputs[:4]:
                tensor.grad = None
            both(lambda: run(*inputs))

        bench.time("readout", case, form, "forward+backward", s, step, *backward)


def index_inputs(s, grad):
    leaf = lambda *dims: torch.randn(*dims, requires_grad=grad)
    b, seq, h, d = s["batch"], s["seq"], s["index_heads"], s["index_dim"]
    return leaf(b, seq, h, d), leaf(b, s["entries"], d), leaf(b, seq, h)


def hidden_entries(s):
    seen = torch.tensor([visible(s, t) for t in range(s["seq"])])
    return torch.arange(s["entries"]) >= seen[:, None]


def select_work(s):
    b, seq, h, d, n = (s[name] for name in ["batch", "seq", "index_heads", "index_dim", "entries"])
    pairs = sum(searched(s, t) for t in range(seq))
    lists = (s.get("pool_blocks") or 0) + s["topk"]
    return b * 2 * h * d * pairs, 4 * (b * seq * (h * d + h + lists) + b * min(n, pairs) * d)


def time_select(bench, case, s, forms):
    with torch.no_grad():
        inputs = index_inputs(s, False)
        pooled = pool(s) if s.get("pool_blocks") else None
        if pooled is not None and s["seq"] != 1:
            sys.exit("the pool is written for one query: --seq 1")
        hidden = hidden_entries(s)
        form = "masked" if pooled is None else "gather"
        if form in forms:
            run = lambda: select(*inputs, pooled, hidden, s["topk"]) is None
            bench.time("select", case, form, "forward", s, run, *select_work(s))


def kl_work(s):
    b, seq, h, d, n, k = (s[name] for name in ["batch", "seq", "index_heads", "index_dim", "entries", "topk"])
    pairs = sum(min(k, visible(s, t)) for t in range(seq))
    flops = b * 2 * h * d * pairs
    bytes = 4 * (b * seq * (h * d + h + 2 * k + 1) + b * min(n, pairs) * d)
    return (flops, bytes), (3 * flops, 2 * bytes + 4 * (b * seq * (h * d + h) + b * n * d))


def time_kl(bench, case, s, forms):
    forward, backward = kl_work(s)
    teacher, index = torch.rand(s["batch"], s["seq"], s["topk"]) + 0.01, lists(s)
    for form, run in [("gather", kl_gather), ("masked", kl_masked)]:
        if form not in forms:
            continue
        inputs = index_inputs(s, False)
        with torch.no_grad():
            bench.time("kl", case, form, "forward", s, lambda: run(*inputs, teacher, index) is None, *forward)
        inputs = index_inputs(s, True)

        def step():
            for tensor in inputs:
                tensor.grad = None
            both(lambda: run(*inputs, teacher, index))

        bench.time("kl", case, form, "forward+backward", s, step, *backward)


def time_query(bench, case, s, forms):
    if "gather" not in forms:
        return
    whole = dict(s, seq=1, ratio=1)
    b, h, d, w = (s[name] for name in ["batch", "heads", "dim", "window"])
    read = w + min(s["topk"], searched(whole, 0))
    flops, bytes = select_work(whole)
    flops, bytes = flops + b * 4 * h * d * read, bytes + 4 * (b * (2 * h * d + read * d + h) + h)
    with torch.no_grad():
        asked, pooled = index_inputs(whole, False), pool(whole) if s["pool_blocks"] else None
        hidden = hidden_entries(whole)
        q, window, main, sink = torch.randn(b, 1, h, d), torch.randn(b, max(w, 1), d), torch.randn(b, s["entries"], d), torch.randn(h)

        def token():
            topk = select(*asked, pooled, hidden, s["topk"])
            readout_gather(q, window, main, sink, topk, w)

        bench.time("query", case, "gather", "token", s, token, flops, bytes, b)


def peak(bench, case, s):
    """Peak of memory of the read-out's gather form, in a process of its own."""
    command = [sys.executable, __file__, "--peak", json.dumps(s), "--threads", str(torch.get_num_threads())]
    used = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    b, seq, h, d, n, k = (s[name] for name in ["batch", "seq", "heads", "dim", "entries", "topk"])
    footprint = 4 * (4 * b * seq * h * d + 2 * b * (seq + n) * d + 2 * h + b * seq * k + b * seq * h)
    bench.peaks.append({
        "operator": "readout", "case": case, "pass": "forward+backward", "form": "gather", "shape": s, "bytes": used,
        "reason": None, "inputs_outputs_gradients": footprint, "ratio": used / footprint,
    })


def resident():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def check():
    """Both forms must agree before either is worth timing."""
    s = dict(zip(READOUT, [2, 9, 3, 8, 9, 4, 3, 1]))
    inputs = [tensor.double() if torch.is_tensor(tensor) and tensor.is_floating_point() else tensor for tensor in readout_inputs(s, False)]
    torch.testing.assert_close(readout_gather(*inputs), readout_masked(*inputs))
    s = dict(zip(INDEX, [2, 9, 3, 8, 9, 4, 1]))
    inputs, teacher, index = [tensor.double() for tensor in index_inputs(s, False)], torch.rand(2, 9, 4).double(), lists(s)
    torch.testing.assert_close(kl_gather(*inputs, teacher, index), kl_masked(*inputs, teacher, index))
    everything = torch.arange(9).expand(2, 9, 9)
    hidden = hidden_entries(s)
    everything = torch.where(hidden, -1, everything)
    assert select(*inputs, None, hidden, 4).equal(select(*inputs, everything, hidden, 4))


def main():
    parser = arguments(__doc__.split("\n")[0])
    parser.add_argument("operator", nargs="?", choices=CASES, help="what is measured (default: everything)")
    parser.add_argument("--case", action="append", help="a case of the table; may be given several times")
    parser.add_argument("--form", action="append", choices=["gather", "masked"], help="default: both")
    parser.add_argument("--peak", help="for the process that measures memory")
    sizes = sorted(set(READOUT + INDEX + DECODE))
    for name in sizes:
        parser.add_argument("--" + name.replace("_", "-"), type=int)
    args = parser.parse_args()
    if args.peak:
        torch.set_num_threads(args.threads)
        tiny = dict(json.loads(args.peak), batch=2, seq=8, entries=8, heads=2, dim=4, topk=2)
        inputs = readout_inputs(tiny, True)
        both(lambda: readout_gather(*inputs))
        before, inputs = resident(), readout_inputs(json.loads(args.peak), True)
        both(lambda: readout_gather(*inputs))
        return print(resident() - before)
    check()
    bench = Bench(args)
    forms = args.form or ["gather", "masked"]
    run = {"readout": time_readout, "select": time_select, "kl": time_kl, "query": time_query}
    for operator in [args.operator] if args.operator else CASES:
        for name, shape in CASES[operator].items():
            memory = operator == "readout" and name == "long"
            if (args.case and name not in args.case) or (memory and not args.case):
                continue
            changes = {size: getattr(args, size) for size in sizes if size in shape and getattr(args, size) is not None}
            if changes and not args.case and name != next(iter(CASES[operator])):
                continue
            shape = {**shape, **changes}
            case = f"{name}, changed" if changes else name
            if memory:
                peak(bench, case, shape)
            else:
                run[operator](bench, case, shape, forms)
    return bench.print()


if __name__ == "__main__":
    main()

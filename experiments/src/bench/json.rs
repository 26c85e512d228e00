//! Results for programs. `benches/peers` prints the same keys.

use serde_json::{Map, Value, json};

use super::peak::Peak;
use super::{MATMUL, Ratio, Results, Row, Shape, Sizes};

/// One document: `run` says on what and how it was measured.
pub fn render(run: &Value, results: &Results) -> Value {
    json!({
        "run": run,
        "matmul_size": MATMUL,
        "results": results.rows.iter().map(row).collect::<Vec<_>>(),
        "peaks": results.peaks.iter().map(peak).collect::<Vec<_>>(),
        "ratios": results.ratios.iter().map(|Ratio { what, value }| json!({"what": what, "value": value})).collect::<Vec<_>>(),
    })
}

fn row(row: &Row) -> Value {
    let subject = &row.subject;
    let parts: Map<String, Value> = row.parts.iter().map(|(name, seconds)| ((*name).into(), json!(seconds))).collect();
    json!({
        "operator": subject.operator,
        "case": subject.case,
        "pass": subject.pass,
        "form": "csa2",
        "shape": shape(&subject.sizes),
        "repetitions": row.timing.repetitions,
        "seconds": {"median": row.timing.median, "p10": row.timing.p10, "p90": row.timing.p90},
        "parts": parts,
        "flops": subject.work.map(|work| work.flops as f64),
        "bytes": subject.work.map(|work| work.bytes as f64),
        "gflops_per_second": row.flops().map(|rate| rate / 1e9),
        "gigabytes_per_second": row.bytes().map(|rate| rate / 1e9),
        "matmul_gflops_per_second": row.matmul.rate / 1e9,
        "matmul_before": row.matmul.before / 1e9,
        "matmul_after": row.matmul.after / 1e9,
        "share_of_matmul": row.share(),
        "tokens_per_second": row.tokens(),
    })
}

fn peak(peak: &Peak) -> Value {
    json!({
        "operator": "readout",
        "case": peak.case,
        "pass": "forward+backward",
        "form": "csa2",
        "shape": shape(&peak.shape.sizes()),
        "bytes": peak.bytes.as_ref().ok(),
        "reason": peak.bytes.as_ref().err(),
        "inputs_outputs_gradients": peak.shape.footprint() as f64,
        "ratio": peak.ratio(),
    })
}

fn shape(sizes: &Sizes) -> Map<String, Value> {
    sizes.iter().map(|(name, value)| (name.replace('-', "_"), json!(value))).collect()
}

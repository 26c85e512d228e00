//! Results for programs.

use serde_json::{Value, json};

use super::check::{Comparison, Difference, Kind, NotRun};
use super::family::Family;
use super::{Compared, Outcome, Report};

/// One document: every comparison of every case.
pub fn render(report: &Report) -> Value {
    json!({
        "program": concat!("csa2 ", env!("CARGO_PKG_VERSION")),
        "folder": report.folder.display().to_string(),
        "backend": report.backend.name(),
        "device": report.hardware,
        "passed": report.count(Outcome::Passed),
        "failed": report.count(Outcome::Failed),
        "not_run": report.count(Outcome::NotRun),
        "cases": report.cases.iter().map(case).collect::<Vec<_>>(),
    })
}

fn case(case: &Compared) -> Value {
    json!({
        "name": case.name,
        "family": Family::of(&case.name).map(|family| family.prefix),
        "about": Family::of(&case.name).map(|family| family.about),
        "result": case.outcome().name(),
        "error": case.error,
        "comparisons": case.comparisons.iter().map(comparison).collect::<Vec<_>>(),
        "not_run": case.not_run.iter().map(not_run).collect::<Vec<_>>(),
        "not_compared": case.unread,
    })
}

/// Numbers that JSON has no form for (infinities, NaN) are texts.
fn number(number: f64) -> Value {
    if number.is_finite() { json!(number) } else { json!(number.to_string()) }
}

fn comparison(comparison: &Comparison) -> Value {
    let (kind, tolerance) = match comparison.kind {
        Kind::Close(tolerance) => ("close", Some(tolerance)),
        Kind::Equal => ("equal", None),
        Kind::Bits => ("bits", None),
    };
    json!({
        "name": comparison.name,
        "on": comparison.on,
        "kind": kind,
        "tolerance": tolerance.map(|tolerance| tolerance.limit),
        "relative_to": tolerance.map(|tolerance| tolerance.scale.name()),
        "passed": comparison.passed(),
        "compared": comparison.compared,
        "differing": comparison.differing,
        "excused": comparison.excused,
        "absolute": tolerance.map(|_| number(comparison.absolute)),
        "relative": tolerance.map(|_| number(comparison.relative)),
        "worst": comparison.worst.as_ref().map(difference),
        "found_numbers": comparison.counts.map(|(found, _)| found),
        "expected_numbers": comparison.counts.map(|(_, expected)| expected),
    })
}

fn difference(difference: &Difference) -> Value {
    json!({
        "place": difference.place,
        "found": number(difference.found),
        "expected": number(difference.expected),
    })
}

fn not_run(left_out: &NotRun) -> Value {
    json!({"part": left_out.part, "reason": left_out.reason})
}

//! The report for programs: one JSON document, with unrounded numbers. What does not exist is `null`.

use serde_json::{Value, json};

use super::analysis::{Analysis, Row};
use super::joint::joint_warnings;
use super::{Ablation, Run};
use crate::stats::Estimate;

/// The document:
///
/// ```text
/// warnings: [text]                  what to know before comparing several ablations
/// ablations: [{
///   record: {...}                   as in ablation.json
///   strays: [text]                  run folders that belong to no variant and seed
///   variants: [{                    best first, those without a result last
///     name, layers, rank, on_front,
///     mean, half_width, n,          the metric over the seeds that count; half of its 95% interval
///     values: {seed: value},
///     difference: {mean, half_width, n, seeds} or null,      to the baseline, paired by seed
///     verdict: "baseline", "better", "worse", "not settled", "1 seed", "no spread" or null,
///     excludes_zero: bool or null,
///     cost: {...}                   as in ablation.json
///     tokens_per_second,
///     missing: [{seed, reason}]     runs without a result
///   }]
/// }]
/// ```
pub fn render(ablations: &[Ablation]) -> Value {
    let analyses: Vec<Analysis> = ablations.iter().map(Analysis::new).collect();
    json!({
        "warnings": joint_warnings(&analyses),
        "ablations": analyses.iter().map(ablation).collect::<Vec<_>>(),
    })
}

fn ablation(analysis: &Analysis) -> Value {
    json!({
        "record": analysis.ablation.record,
        "strays": analysis.ablation.strays,
        "variants": analysis.rows.iter().map(variant).collect::<Vec<_>>(),
    })
}

fn variant(row: &Row) -> Value {
    let record = &row.variant.record;
    let difference = row.difference.as_ref().map(|found| {
        let Estimate { mean, half_width, n, .. } = found.estimate;
        json!({"mean": mean, "half_width": half_width, "n": n, "seeds": found.seeds})
    });
    json!({
        "name": record.name,
        "layers": record.layers,
        "rank": row.rank,
        "on_front": row.on_front,
        "mean": row.estimate.map(|estimate| estimate.mean),
        "half_width": row.estimate.and_then(|estimate| estimate.half_width),
        "n": row.values.len(),
        "values": row.values,
        "difference": difference,
        "verdict": row.effect.known_word(),
        "excludes_zero": row.effect.excludes_zero(),
        "cost": record.cost,
        "tokens_per_second": row.tokens_per_second,
        "missing": row.variant.runs.iter().filter_map(missing).collect::<Vec<_>>(),
    })
}

fn missing(run: &Run) -> Option<Value> {
    run.summary().is_none().then(|| json!({"seed": run.seed, "reason": run.state.to_string()}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{Fake, ablation};

    #[test]
    fn every_number_of_the_table_is_there_unrounded() {
        let fakes = [Fake::new("windows", 0.0, &[0.25, 0.5]), Fake::new("full", 20.0, &[0.75, 0.875])];
        let value = render(&[ablation(&fakes)]);
        assert_eq!(value["warnings"], json!([]));
        let first = &value["ablations"][0];
        assert_eq!((&first["record"]["name"], &first["strays"]), (&json!("fake"), &json!([])));
        let (full, windows) = (&first["variants"][0], &first["variants"][1]);
        assert_eq!(
            (&full["name"], &full["rank"], &full["mean"], &full["n"]),
            (&json!("full"), &json!(1), &json!(0.8125), &json!(2))
        );
        assert_eq!(full["values"], json!({"1": 0.75, "2": 0.875}));
        // Two seeds: half a width is 12.706 times half their distance.
        let half = |value: &Value| value["half_width"].as_f64().unwrap() / 12.706_204_736;
        assert!((half(full) - 0.0625).abs() < 1e-9, "{full}");
        let difference = &full["difference"];
        assert_eq!((&difference["mean"], &difference["seeds"]), (&json!(0.4375), &json!([1, 2])));
        assert!((half(difference) - 0.0625).abs() < 1e-9, "{difference}");
        assert_eq!((&full["verdict"], &full["excludes_zero"]), (&json!("not settled"), &json!(false)));
        assert_eq!((&windows["verdict"], &windows["difference"]), (&json!("baseline"), &Value::Null));
        assert_eq!((&full["cost"]["bytes_per_token"], &full["tokens_per_second"]), (&json!(20.0), &json!(500.0)));
    }

    #[test]
    fn runs_without_a_result_have_a_reason() {
        let value = render(&[ablation(&[Fake::new("windows", 0.0, &[0.5, 0.5]), Fake::new("absent", 1.0, &[])])]);
        let absent = &value["ablations"][0]["variants"][1];
        for key in ["rank", "mean", "half_width", "difference", "verdict", "excludes_zero", "tokens_per_second"] {
            assert_eq!(absent[key], Value::Null, "{key}");
        }
        assert_eq!(absent["n"], 0);
        assert_eq!(
            absent["missing"],
            json!([{"seed": 1, "reason": "not started"}, {"seed": 2, "reason": "not started"}])
        );
    }

    #[test]
    fn several_ablations_come_with_their_warnings() {
        let first = ablation(&[Fake::new("windows", 0.0, &[0.5])]);
        let mut second = first.clone();
        second.record.budget_tokens = 9;
        let value = render(&[first, second]);
        assert_eq!(value["ablations"].as_array().map(Vec::len), Some(2));
        assert!(value["warnings"][0].as_str().unwrap().contains("budgets differ"), "{value}");
    }
}

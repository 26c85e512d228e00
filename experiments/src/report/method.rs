//! How the numbers of a report were obtained, in words.

use std::collections::BTreeSet;

use super::analysis::Analysis;
use super::{Run, charts, format};
use crate::results::RunSummary;

/// How the numbers were obtained, one paragraph each.
pub fn method(analysis: &Analysis) -> Vec<(&'static str, String)> {
    let record = &analysis.ablation.record;
    let mut notes = vec![
        (
            "Evaluation",
            format!(
                "The {} of each run is measured at its end on validation data that no training step sees. {} is better.",
                record.metric.label,
                if record.metric.higher_is_better { "Higher" } else { "Lower" }
            ),
        ),
        ("Budget", budget(analysis)),
        (
            "Interval",
            "± is half the width of the 95% interval of the mean over seeds: t · s / √n, with the sample standard \
             deviation s and Student's t for n − 1 degrees of freedom (12.71 for two seeds, 4.30 for three, 2.78 for \
             five). It takes the seeds as independent draws of a normal distribution, and does not know that a metric \
             may be bounded. One seed gives no interval."
                .to_owned(),
        ),
        (
            "Pairing",
            "A variant is compared with the baseline seed by seed: the two runs of a seed share their data order, and \
             the interval is that of the mean of these differences, over the seeds that both have finished. “better” \
             and “worse” say that this interval excludes zero, “not settled” that it includes zero. Each comparison \
             stands alone: nothing corrects for many of them."
                .to_owned(),
        ),
        (
            "Bytes per token",
            "Cache bytes that grow with every token of context: main KV and index keys of the full layers (and of \
             layers with a content of their own). The windows keep a fixed number of bytes whatever the context, \
             listed with each variant."
                .to_owned(),
        ),
        (
            "Decode FLOPs",
            format!(
                "Operations to decode one token at a context of {} tokens, weighted by the precision that the released \
                 model computes in: projections and experts as FP8 × 0.5, read-out and head as BF16 × 1, index scoring \
                 as FP4 × 0.25. They are counted from the plan, not measured.",
                contexts(analysis)
            ),
        ),
    ];
    if analysis.ablation.variants.iter().any(|variant| charts::dense_tokens(variant) > 0) {
        let text =
            "In the dense phase every visible entry is attended instead of the selected ones. It counts towards \
                    the budget and is shaded in the curves."
                .to_owned();
        notes.push(("Dense phase", text));
    }
    notes
}

fn contexts(analysis: &Analysis) -> String {
    let contexts: BTreeSet<u64> = analysis.rows.iter().map(|row| row.variant.record.cost.decode_context).collect();
    contexts.into_iter().map(format::context).collect::<Vec<_>>().join(", ")
}

/// The budget, and whether the runs kept to it.
/// Which runs have another budget, if any do.
pub fn own_budgets(analysis: &Analysis) -> &'static str {
    if analysis.ablation.record.notes.iter().any(|note| note.contains(" starts from the weights of ")) {
        ", but for variants that start from another one's weights, which have budgets of their own (see the notes)"
    } else {
        ""
    }
}

fn budget(analysis: &Analysis) -> String {
    let record = &analysis.ablation.record;
    let staged = own_budgets(analysis);
    let planned =
        format!("Every run is given the same {} training tokens{staged}", format::count(record.budget_tokens as f64));
    let used: BTreeSet<u64> = summaries(analysis).map(|summary| summary.tokens).collect();
    match (used.first(), used.last()) {
        (Some(least), Some(most)) if used.len() > 1 || *least != record.budget_tokens => {
            let range = if least == most { format!("{least}") } else { format!("between {least} and {most}") };
            format!("{planned} (exactly {}); the runs that count used {range}.", record.budget_tokens)
        }
        _ => format!("{planned}."),
    }
}

/// The summaries of the runs that count.
pub fn summaries<'a>(analysis: &'a Analysis) -> impl Iterator<Item = &'a RunSummary> {
    analysis.rows.iter().flat_map(|row| row.variant.runs.iter()).filter_map(Run::summary)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{Fake, ablation};

    #[test]
    fn the_budget_says_what_the_runs_used() {
        let mut ablation = ablation(&[Fake::new("windows", 0.0, &[0.5])]);
        assert_eq!(budget(&Analysis::new(&ablation)), "Every run is given the same 1000 training tokens.");
        ablation.record.budget_tokens = 1200;
        assert!(budget(&Analysis::new(&ablation)).ends_with("(exactly 1200); the runs that count used 1000."));
    }
}

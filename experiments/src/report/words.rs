//! The answer in sentences, made from the numbers alone.

use super::analysis::{Analysis, Effect, Row, effect};
use super::format;
use crate::stats;

/// Variants that a sentence lists one by one; the table has them all.
const LONGEST_LIST: usize = 5;

/// A sentence whose variant names are kept apart from its words, so that each output can set them off in its own way.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sentence(pub Vec<Part>);

/// A piece of a sentence.
#[derive(Debug, Clone, PartialEq)]
pub enum Part {
    /// Words.
    Text(String),
    /// The name of a variant.
    Name(String),
}

impl Sentence {
    fn text(mut self, text: impl Into<String>) -> Self {
        self.0.push(Part::Text(text.into()));
        self
    }

    fn name(mut self, row: &Row) -> Self {
        self.0.push(Part::Name(row.variant.record.name.clone()));
        self
    }

    /// `a (x), b (y) and c (z)`, where `detail` gives what stands in the brackets; of many rows the first and the last.
    fn list(mut self, rows: &[&Row], detail: &dyn Fn(&Row) -> Option<String>) -> Self {
        if let [first, .., last] = rows
            && rows.len() > LONGEST_LIST
        {
            let ends = self.text(format!("{} variants, from ", rows.len())).list(&[first], detail);
            return ends.text(" to ").list(&[last], detail);
        }
        for (index, row) in rows.iter().enumerate() {
            let separator = match index {
                0 => "",
                last if last + 1 == rows.len() => " and ",
                _ => ", ",
            };
            self = self.text(separator).name(row);
            if let Some(detail) = detail(row) {
                self = self.text(format!(" ({detail})"));
            }
        }
        self
    }

    /// The sentence with each name printed by `name` and each text by `text`.
    pub fn print(&self, text: impl Fn(&str) -> String, name: impl Fn(&str) -> String) -> String {
        let parts = self.0.iter().map(|part| match part {
            Part::Text(words) => text(words),
            Part::Name(words) => name(words),
        });
        parts.collect()
    }
}

/// What the ablation answers, in plain sentences.
pub fn answer(analysis: &Analysis) -> Vec<Sentence> {
    let mut sentences = Vec::new();
    let ranked: Vec<&Row> = analysis.ranked().map(|(row, _)| row).collect();
    if ranked.is_empty() {
        sentences.push(Sentence::default().text("No run has a result yet, so there is no answer."));
    } else {
        sentences.push(best(analysis, &ranked));
        sentences.extend(lead(analysis, &ranked));
        sentences.extend(against_baseline(analysis));
        sentences.extend(front(analysis, &ranked));
    }
    sentences.extend(gaps(analysis));
    sentences
}

fn measured(row: &Row) -> Option<String> {
    let estimate = row.estimate?;
    Some(format!("{} over {}", format::estimate(&estimate, format::value), format::seeds(estimate.n)))
}

fn best(analysis: &Analysis, ranked: &[&Row]) -> Sentence {
    let label = &analysis.metric().label;
    let direction = if analysis.metric().higher_is_better { "highest" } else { "lowest" };
    let first: Vec<&Row> = ranked.iter().copied().filter(|row| row.rank == Some(1)).collect();
    let verb = if first.len() == 1 { "has" } else { "share" };
    let sentence = match first.as_slice() {
        [only] => Sentence::default().name(only).text(format!(" {verb} the {direction} {label}: ")),
        several => Sentence::default().list(several, &|_| None).text(format!(" {verb} the {direction} {label}: ")),
    };
    let value = ranked.first().and_then(|row| measured(row)).unwrap_or_default();
    let single = ranked.first().and_then(|row| row.estimate).is_some_and(|estimate| estimate.n == 1);
    sentence.text(if single { format!("{value}, which gives no interval.") } else { format!("{value}.") })
}

/// Whether the first place is settled against the second.
fn lead(analysis: &Analysis, ranked: &[&Row]) -> Option<Sentence> {
    let [first, second, ..] = ranked else {
        return None;
    };
    if second.rank == Some(1) {
        return None;
    }
    let sentence = Sentence::default().text("Against the second, ").name(second).text(", ");
    let Ok(difference) = stats::paired_difference(&first.values, &second.values) else {
        return Some(sentence.text("it shares no seed, so that the order of the two cannot be judged."));
    };
    let size = format::estimate(&difference.estimate, format::signed);
    let verdict = match effect(&difference, analysis.metric().higher_is_better) {
        Effect::Better => "the interval excludes zero, so the spread over seeds alone does not explain the lead.",
        Effect::OneSeed => "on one seed, which cannot tell a lead from chance.",
        Effect::NoSpread => "the same for every seed, so the spread over seeds says nothing.",
        _ => "the interval includes zero, so these runs do not settle which of the two is better.",
    };
    Some(sentence.text(format!("the paired difference is {size}: {verdict}")))
}

fn against_baseline(analysis: &Analysis) -> Vec<Sentence> {
    let Some(baseline) = analysis.baseline() else {
        return Vec::new();
    };
    if baseline.estimate.is_none() {
        let sentence = Sentence::default().text("The baseline ").name(baseline);
        return vec![sentence.text(" has no result yet, so nothing is compared with it.")];
    }
    let with =
        |wanted: &[Effect]| -> Vec<&Row> { analysis.rows.iter().filter(|row| wanted.contains(&row.effect)).collect() };
    let difference = |row: &Row| row.difference.as_ref().map(|found| format::estimate(&found.estimate, format::signed));
    let groups: [(&[Effect], &str, &str); 4] = [
        (&[Effect::Better], "Better than the baseline ", " (the interval of the paired difference excludes zero): "),
        (&[Effect::Worse], "Worse than the baseline ", " (the interval of the paired difference excludes zero): "),
        (&[Effect::NotSettled], "Not settled against the baseline ", " (the interval includes zero): "),
        (
            &[Effect::OneSeed, Effect::NoSpread],
            "Without an interval against the baseline ",
            " (one shared seed, or the same difference in all): ",
        ),
    ];
    let mut sentences = Vec::new();
    for (effects, lead, reason) in groups {
        let rows = with(effects);
        if !rows.is_empty() {
            let sentence = Sentence::default().text(lead).name(baseline).text(reason);
            sentences.push(sentence.list(&rows, &difference).text("."));
        }
    }
    sentences
}

fn front(analysis: &Analysis, ranked: &[&Row]) -> Option<Sentence> {
    let mut rows: Vec<&Row> = ranked.iter().copied().filter(|row| row.on_front).collect();
    if ranked.len() < 2 {
        return None;
    }
    rows.sort_by(|left, right| {
        left.variant.record.cost.bytes_per_token.total_cmp(&right.variant.record.cost.bytes_per_token)
    });
    let bytes = |row: &Row| {
        let rate = format::count(row.variant.record.cost.bytes_per_token);
        let mean = row.estimate.map(|estimate| format::value(estimate.mean)).unwrap_or_default();
        Some(format!("{rate} bytes, {mean}"))
    };
    let label = &analysis.metric().label;
    let lead = format!("On the Pareto front of mean {label} against cache bytes per token: ");
    Some(Sentence::default().text(lead).list(&rows, &bytes).text("."))
}

fn gaps(analysis: &Analysis) -> Option<Sentence> {
    let total: usize = analysis.rows.iter().map(|row| row.variant.runs.len()).sum();
    let missing = analysis.without_result().len();
    let words = if missing == 1 {
        "has no result and is not counted; it is"
    } else {
        "have no result and are not counted; they are"
    };
    (missing > 0).then(|| {
        let text = format!("{missing} of {total} runs {words} listed below.");
        Sentence::default().text(text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::testing::{Fake, ablation};
    use crate::report::{Ablation, RunState};

    fn plain(ablation: &Ablation) -> String {
        let sentences = answer(&Analysis::new(ablation));
        let print = |sentence: &Sentence| sentence.print(str::to_owned, |name| format!("[{name}]"));
        sentences.iter().map(print).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn a_clear_result_reads_as_one() {
        let ablation = ablation(&[
            Fake::new("windows", 0.0, &[0.07, 0.08]),
            Fake::new("reuse", 20.0, &[0.990, 0.991]),
            Fake::new("full", 40.0, &[0.990, 0.989]),
        ]);
        let expected = "[reuse] has the highest accuracy: 0.9905 ± 0.0064 over 2 seeds.\n\
            Against the second, [full], the paired difference is +0.0010 ± 0.0127: the interval includes zero, so these \
            runs do not settle which of the two is better.\n\
            Better than the baseline [windows] (the interval of the paired difference excludes zero): [reuse] (+0.9155 ± \
            0.0572) and [full] (+0.9145 ± 0.0699).\n\
            On the Pareto front of mean accuracy against cache bytes per token: [windows] (0 bytes, 0.0750) and [reuse] (20 bytes, 0.9905).";
        assert_eq!(plain(&ablation), expected);
    }

    #[test]
    fn long_lists_name_their_ends() {
        let names = ["windows", "a", "b", "c", "d", "e", "f"];
        let fakes: Vec<Fake> = names
            .iter()
            .enumerate()
            .map(|(index, name)| {
                Fake::new(name, index as f64, &[index as f64 / 10.0, index as f64 / 10.0 + 0.001 * index as f64])
            })
            .collect();
        let text = plain(&ablation(&fakes));
        assert!(text.contains("6 variants, from [f] (+0.6030"), "{text}");
        assert!(!text.contains("[c]"), "{text}");
    }

    #[test]
    fn one_seed_claims_nothing() {
        let text = plain(&ablation(&[Fake::new("windows", 0.0, &[0.07]), Fake::new("full", 40.0, &[0.9])]));
        assert!(text.contains("0.9000 over 1 seed, which gives no interval"), "{text}");
        assert!(text.contains("cannot tell a lead from chance"), "{text}");
        assert!(!text.contains("excludes zero"), "{text}");
    }

    #[test]
    fn ties_and_missing_runs_are_said() {
        let mut ablation = ablation(&[
            Fake::new("windows", 0.0, &[]),
            Fake::new("a", 1.0, &[0.5, 0.7]),
            Fake::new("b", 2.0, &[0.7, 0.5]),
        ]);
        ablation.variants[1].runs[1].state = RunState::Failed("loss is NaN".to_owned());
        ablation.variants[2].runs[0].state = RunState::NotStarted;
        let text = plain(&ablation);
        assert!(text.contains("[a] and [b] share the highest accuracy"), "{text}");
        assert!(text.contains("baseline [windows] has no result yet"), "{text}");
        assert!(text.contains("4 of 6 runs have no result"), "{text}");
    }
}

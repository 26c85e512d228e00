//! Several ablations side by side.

use super::analysis::{Analysis, Row, order};
use crate::results::AblationRecord;

/// What a reader must know before comparing across ablations; empty where nothing stands against it.
pub fn joint_warnings(analyses: &[Analysis]) -> Vec<String> {
    let Some(first) = analyses.first().map(|analysis| &analysis.ablation.record) else {
        return Vec::new();
    };
    let differs =
        |same: &dyn Fn(&AblationRecord) -> bool| analyses.iter().any(|analysis| !same(&analysis.ablation.record));
    let mut warnings = Vec::new();
    if differs(&|record| record.metric == first.metric) {
        warnings.push("The ablations are ranked by different metrics; there is no joint ranking.".to_owned());
    } else if differs(&|record| record.task == first.task) {
        warnings.push(
            "The tasks differ: values of different tasks are not comparable. Compare within a section.".to_owned(),
        );
    }
    if differs(&|record| record.budget_tokens == first.budget_tokens) {
        warnings.push("The token budgets differ between the ablations.".to_owned());
    }
    let context = |record: &AblationRecord| record.variants.first().map(|variant| variant.cost.decode_context);
    if differs(&|record| context(record) == context(first)) {
        warnings.push("Decode FLOPs are counted at different contexts.".to_owned());
    }
    warnings
}

/// Whether one ranking over all of these ablations has a meaning to show: several of them, by one metric.
pub fn has_joint_ranking(analyses: &[Analysis]) -> bool {
    match analyses {
        [first, rest @ ..] => !rest.is_empty() && rest.iter().all(|other| other.metric() == first.metric()),
        [] => false,
    }
}

/// The rows of all ablations in one order, each with the place of its ablation.
pub fn joint_rows<'a, 'b>(analyses: &'b [Analysis<'a>]) -> Vec<(usize, &'b Row<'a>)> {
    let mut rows: Vec<(usize, &Row)> = analyses
        .iter()
        .enumerate()
        .flat_map(|(index, analysis)| analysis.rows.iter().map(move |row| (index, row)))
        .collect();
    if let Some(first) = analyses.first() {
        rows.sort_by(|(_, left), (_, right)| order(first.metric(), left, right));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::Ablation;
    use crate::report::testing::{Fake, ablation};

    #[test]
    fn joining_warns_where_values_cannot_be_compared() {
        let first = ablation(&[Fake::new("windows", 0.0, &[0.5])]);
        let mut second = first.clone();
        let warnings = |other: &Ablation| joint_warnings(&[Analysis::new(&first), Analysis::new(other)]);
        assert!(warnings(&second).is_empty());
        second.record.task = "another".to_owned();
        assert!(warnings(&second)[0].contains("tasks differ"));
        assert!(has_joint_ranking(&[Analysis::new(&first), Analysis::new(&second)]));
        second.record.metric.name = "loss".to_owned();
        assert!(warnings(&second)[0].contains("different metrics"));
        assert!(!has_joint_ranking(&[Analysis::new(&first), Analysis::new(&second)]));
        assert!(!has_joint_ranking(&[Analysis::new(&first)]));
    }
}

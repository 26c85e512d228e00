//! The canonical printing of a layer mix: equal neighbours become `item*count`, repeated stretches `(items)*count`.

use std::fmt;

use super::{LayerSpec, Mode};

/// What a run repeats.
#[derive(Clone, PartialEq)]
enum Item {
    Layer(LayerSpec),
    Group(Vec<Run>),
}

/// An item and how often it stands in a row.
#[derive(Clone, PartialEq)]
struct Run {
    item: Item,
    count: usize,
}

impl Run {
    fn starts_with_reuse(&self) -> bool {
        match &self.item {
            Item::Layer(spec) => spec.mode == Mode::Reuse,
            Item::Group(runs) => runs.first().is_some_and(Self::starts_with_reuse),
        }
    }
}

/// Writes the mix in its canonical form.
pub(super) fn print(layers: impl Iterator<Item = LayerSpec>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write_runs(&fold(layers), f)
}

/// Folds repeats from the shortest period up, again and again until a whole pass finds none, so that groups of groups are found.
fn fold(layers: impl Iterator<Item = LayerSpec>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for spec in layers {
        let item = Item::Layer(spec);
        match runs.last_mut() {
            Some(last) if last.item == item => last.count += 1,
            _ => runs.push(Run { item, count: 1 }),
        }
    }
    loop {
        let before = runs.len();
        let mut period = 2;
        while period <= runs.len() / 2 {
            runs = fold_period(&runs, period);
            period += 1;
        }
        if runs.len() == before {
            return runs;
        }
    }
}

/// Replaces every stretch that repeats after `period` runs by a group.
fn fold_period(runs: &[Run], period: usize) -> Vec<Run> {
    let mut folded = Vec::with_capacity(runs.len());
    let mut rest = runs;
    while !rest.is_empty() {
        // `rest` is periodic over its first `length` runs.
        let length = period + rest.iter().zip(rest.iter().skip(period)).take_while(|(a, b)| a == b).count();
        let count = length / period;
        if count < 2 {
            // No start before the mismatch can do better.
            let (skipped, after) = rest.split_at((length - period + 1).min(rest.len()));
            folded.extend_from_slice(skipped);
            rest = after;
            continue;
        }
        // The same number of repeats often fits at several starts: a group reads best when it begins with its source.
        let slack = length - count * period;
        let shift = rest.iter().take(slack + 1).position(|run| !run.starts_with_reuse()).unwrap_or(0);
        let (lead, body) = rest.split_at(shift);
        let (repeated, after) = body.split_at(count * period);
        folded.extend_from_slice(lead);
        folded.push(Run { item: Item::Group(repeated.iter().take(period).cloned().collect()), count });
        rest = after;
    }
    folded
}

fn write_runs(runs: &[Run], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (i, run) in runs.iter().enumerate() {
        if i > 0 {
            f.write_str(" ")?;
        }
        match &run.item {
            Item::Layer(spec) => write!(f, "{spec}")?,
            Item::Group(inner) => {
                f.write_str("(")?;
                write_runs(inner, f)?;
                f.write_str(")")?;
            }
        }
        if run.count > 1 {
            write!(f, "*{}", run.count)?;
        }
    }
    Ok(())
}

impl fmt::Display for LayerSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.mode)?;
        if self.ratio > 1 {
            write!(f, "@{}", self.ratio)?;
        }
        if self.pool {
            f.write_str("+pool")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::LayerPlan;

    fn canonical(text: &str) -> String {
        text.parse::<LayerPlan>().unwrap().to_string()
    }

    #[test]
    fn released_layout_prints_as_it_is_known() {
        let known = "swa*2 (full@2 reuse*5)*3 full+pool reuse*3 (reindex reuse*3)*4";
        assert_eq!(canonical(known), known);
        assert_eq!(canonical("swa*2 (full@2 reuse*5)*3 full@1+pool reuse*3 (reindex reuse*3)*4"), known);
    }

    #[test]
    fn repeats_fold() {
        assert_eq!(canonical("swa swa full reuse full reuse"), "swa*2 (full reuse)*2");
        assert_eq!(
            canonical("full reindex reuse reindex reuse full reindex reuse reindex reuse"),
            "(full (reindex reuse)*2)*2"
        );
        assert_eq!(canonical("full reuse swa reuse swa"), "full (reuse swa)*2");
        assert_eq!(canonical("full reuse swa reuse swa reuse"), "full reuse (swa reuse)*2");
        assert_eq!(canonical("full swa full swa full"), "(full swa)*2 full");
        assert_eq!(canonical("(full@2 full@3)*2"), "(full@2 full@3)*2");
        assert_eq!(canonical("((swa)*3)*2"), "swa*6");
    }

    #[test]
    fn what_does_not_repeat_stays_flat() {
        assert_eq!(canonical("swa full reuse swa dense"), "swa full reuse swa dense");
        assert_eq!(canonical("full full@2 full+pool full@2+pool"), "full full@2 full+pool full@2+pool");
    }
}

//! The greedy descent: in every round the change that costs least.

use csa2_model::mix::LayerPlan;
use serde::Serialize;

use super::changes::{Change, Excluded, changes, targets};

/// Which changes there are, and when to stop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rules {
    /// Whether a `full` layer may become a `reindex` layer, besides `reuse`.
    pub full_to_reindex: bool,
    /// The most that the measure may get worse against the run's own mix.
    pub max_worsening: Option<f64>,
    /// The fewest selecting layers.
    pub min_selecting: Option<usize>,
}

/// What a mix is worth.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Worth {
    /// How much worse than the run's own mix; below 0 where it is better, not a number where the measure is none.
    pub worsening: f64,
    /// Entries that indexers score to decode a token.
    pub scored_entries: f64,
    /// Bytes that each token adds to what decoding keeps.
    pub bytes_per_token: f64,
}

impl Worth {
    /// Whether this is the better choice: less worsening; where that is equal fewer scored entries, then fewer bytes.
    fn beats(&self, other: &Self) -> bool {
        let key = |worth: &Self| [worth.worsening, worth.scored_entries, worth.bytes_per_token];
        let orders = key(self).into_iter().zip(key(other)).map(|(one, other)| one.total_cmp(&other));
        orders.fold(std::cmp::Ordering::Equal, std::cmp::Ordering::then).is_lt()
    }
}

/// A candidate of a round.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tried {
    /// The change.
    #[serde(flatten)]
    pub change: Change,
    /// What the changed mix is worth.
    #[serde(flatten)]
    pub worth: Worth,
}

/// All single changes of one mix.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Round {
    /// The candidates.
    pub tried: Vec<Tried>,
    /// Changes that are no candidates.
    pub excluded: Vec<Excluded>,
    /// The candidate that was taken, by its place; none where the search stopped.
    pub taken: Option<usize>,
}

/// Why a search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Stop {
    /// No change is left.
    NothingLeft,
    /// Every change would leave fewer selecting layers than `min_selecting`.
    MinSelecting,
    /// The best change makes the measure worse by more than `max_worsening`.
    MaxWorsening,
    /// No candidate has a measure that is a number.
    NotFinite,
}

/// The changes of `plan` that the rules allow, those that cannot be, and whether `min_selecting` alone left none.
pub fn allowed(plan: &LayerPlan, rules: &Rules) -> (Vec<Change>, Vec<Excluded>, bool) {
    let (mut candidates, excluded) = changes(plan, rules.full_to_reindex);
    let some = !candidates.is_empty();
    let least = rules.min_selecting.unwrap_or(0);
    candidates.retain(|change| change.plan.selecting().count() >= least);
    let blocked = some && candidates.is_empty();
    (candidates, excluded, blocked)
}

/// The most changes that can follow on each other from `plan`.
pub fn most_steps(plan: &LayerPlan, rules: &Rules) -> usize {
    plan.selecting().skip(1).map(|layer| targets(layer.mode, rules.full_to_reindex).len()).sum()
}

/// Goes down from `start`. `measure` is asked for every candidate, `taken` is told what was chosen.
///
/// # Errors
/// What `measure` and `taken` fail with.
pub fn descend<E>(
    start: &LayerPlan,
    rules: &Rules,
    mut measure: impl FnMut(&LayerPlan) -> Result<Worth, E>,
    mut taken: impl FnMut(&LayerPlan) -> Result<(), E>,
) -> Result<(Vec<Round>, Stop), E> {
    let (mut plan, mut rounds) = (start.clone(), Vec::new());
    loop {
        let (candidates, excluded, blocked) = allowed(&plan, rules);
        if candidates.is_empty() {
            rounds.push(Round { tried: Vec::new(), excluded, taken: None });
            return Ok((rounds, if blocked { Stop::MinSelecting } else { Stop::NothingLeft }));
        }
        let mut tried: Vec<Tried> = Vec::new();
        let mut best: Option<usize> = None;
        for change in candidates {
            let worth = measure(&change.plan)?;
            let number = worth.worsening.is_finite();
            if number && best.is_none_or(|best| worth.beats(&tried[best].worth)) {
                best = Some(tried.len());
            }
            tried.push(Tried { change, worth });
        }
        let stop = match best {
            None => Some(Stop::NotFinite),
            Some(best) if rules.max_worsening.is_some_and(|most| tried[best].worth.worsening > most) => {
                Some(Stop::MaxWorsening)
            }
            Some(_) => None,
        };
        if let Some(stop) = stop {
            rounds.push(Round { tried, excluded, taken: None });
            return Ok((rounds, stop));
        }
        plan = best.map_or(plan, |best| tried[best].change.plan.clone());
        taken(&plan)?;
        rounds.push(Round { tried, excluded, taken: best });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::convert::Infallible;

    use proptest::prelude::*;

    use super::*;

    const FREE: Rules = Rules { full_to_reindex: true, max_worsening: None, min_selecting: None };

    /// A worth that every mix has by itself, without any order in it.
    fn scatter(plan: &LayerPlan, salt: u64) -> Worth {
        let text = plan.to_string();
        let number = text.bytes().fold(salt, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
        // Few different values, so that many are equal.
        Worth {
            worsening: (number >> 20) as f64 % 5.0,
            scored_entries: plan.selecting().count() as f64,
            bytes_per_token: (number >> 40) as f64 % 3.0,
        }
    }

    fn descent(mix: &str, rules: &Rules, salt: u64) -> (Vec<Round>, Stop, Vec<String>) {
        let mut path = Vec::new();
        let start: LayerPlan = mix.parse().unwrap();
        let measure = |plan: &LayerPlan| Ok::<_, Infallible>(scatter(plan, salt));
        let Ok((rounds, stop)) = descend(&start, rules, measure, |plan| {
            path.push(plan.to_string());
            Ok(())
        });
        (rounds, stop, path)
    }

    /// All mixes that differ from `mix` in one layer that owns less, told by the layers' words alone.
    fn neighbours(mix: &[String]) -> Vec<Vec<String>> {
        let mut found = Vec::new();
        for (place, word) in mix.iter().enumerate() {
            let fewer: &[&str] = match &word[..4.min(word.len())] {
                "full" => &["reindex", "reuse"],
                "rein" => &["reuse"],
                _ => &[],
            };
            // The lowest layer that owns anything must own content.
            if !mix[..place].iter().any(|below| below.starts_with("full")) {
                continue;
            }
            for to in fewer {
                let mut other = mix.to_vec();
                other[place] = (*to).to_string();
                found.push(other);
            }
        }
        found
    }

    proptest! {
        #[test]
        fn every_step_is_the_best_of_all_single_changes(
            words in proptest::collection::vec(proptest::sample::select(vec!["swa", "full", "full@2", "reindex", "reuse"]), 1..7),
            salt: u64,
        ) {
            let mut mix: Vec<String> = std::iter::once("full").chain(words).map(str::to_string).collect();
            let (rounds, stop, path) = descent(&mix.join(" "), &FREE, salt);
            prop_assert!(path.len() <= most_steps(&mix.join(" ").parse().unwrap(), &FREE));
            prop_assert_eq!(stop, Stop::NothingLeft);
            prop_assert_eq!(rounds.len(), path.len() + 1);
            for (round, step) in rounds.iter().zip(&path) {
                let options = neighbours(&mix);
                prop_assert_eq!(options.len(), round.tried.len());
                let worth = |words: &Vec<String>| scatter(&words.join(" ").parse().unwrap(), salt);
                let key = |worth: Worth| [worth.worsening, worth.scored_entries, worth.bytes_per_token].map(|n| n as i64);
                let best = options.iter().min_by_key(|option| key(worth(option))).unwrap();
                let parsed: LayerPlan = best.join(" ").parse().unwrap();
                prop_assert_eq!(&parsed.to_string(), step);
                mix = best.clone();
            }
            prop_assert!(neighbours(&mix).is_empty());
        }
    }

    /// A descent over worsenings that are given by mix.
    fn given(start: &str, rules: &Rules, worsenings: &[(&str, f64)]) -> (Vec<Round>, Stop) {
        let known: BTreeMap<String, f64> = worsenings.iter().map(|(mix, value)| ((*mix).to_string(), *value)).collect();
        let measure = |plan: &LayerPlan| {
            let worsening = known[&plan.to_string()];
            Ok::<_, Infallible>(Worth { worsening, scored_entries: 1.0, bytes_per_token: 1.0 })
        };
        let Ok(found) = descend(&start.parse().unwrap(), rules, measure, |_| Ok(()));
        found
    }

    #[test]
    fn it_stops_where_it_is_told_to() {
        let worsenings = [("full reuse full", 0.5), ("full*2 reuse", 0.2), ("full reuse*2", 0.9)];
        let rules = Rules { full_to_reindex: false, ..FREE };
        let steps = |rounds: &[Round]| rounds.iter().filter(|round| round.taken.is_some()).count();
        let (rounds, stop) = given("full*3", &rules, &worsenings);
        assert_eq!((steps(&rounds), stop), (2, Stop::NothingLeft));
        let (rounds, stop) = given("full*3", &Rules { max_worsening: Some(0.2), ..rules }, &worsenings);
        assert_eq!((steps(&rounds), stop), (1, Stop::MaxWorsening));
        assert_eq!((rounds[0].taken, rounds[1].tried.len()), (Some(1), 1));
        let (rounds, stop) = given("full*3", &Rules { max_worsening: Some(0.19), ..rules }, &worsenings);
        assert_eq!((steps(&rounds), stop), (0, Stop::MaxWorsening));
        let (rounds, stop) = given("full*3", &Rules { min_selecting: Some(2), ..rules }, &worsenings);
        assert_eq!((steps(&rounds), stop), (1, Stop::MinSelecting));
    }

    #[test]
    fn what_is_no_number_is_never_taken() {
        let rules = Rules { full_to_reindex: false, ..FREE };
        let nan = f64::NAN;
        let (rounds, stop) =
            given("full*3", &rules, &[("full reuse full", nan), ("full*2 reuse", 7.0), ("full reuse*2", -nan)]);
        assert_eq!((rounds[0].taken, rounds[1].taken, stop), (Some(1), None, Stop::NotFinite));
    }

    #[test]
    fn equal_losses_are_decided_by_cost_and_then_by_place() {
        let start: LayerPlan = "full*3".parse().unwrap();
        let choose = |cost: fn(&str) -> (f64, f64)| {
            let measure = |plan: &LayerPlan| {
                let (scored_entries, bytes_per_token) = cost(&plan.to_string());
                Ok::<_, Infallible>(Worth { worsening: 0.0, scored_entries, bytes_per_token })
            };
            let Ok((rounds, _)) = descend(&start, &FREE, measure, |_| Ok(()));
            let taken = rounds[0].taken.unwrap();
            rounds[0].tried[taken].change.plan.to_string()
        };
        assert_eq!(choose(|_| (1.0, 1.0)), "full reindex full");
        assert_eq!(choose(|mix| (if mix == "full*2 reuse" { 0.5 } else { 1.0 }, 1.0)), "full*2 reuse");
        assert_eq!(choose(|mix| (1.0, if mix == "full*2 reindex" { 0.5 } else { 1.0 })), "full*2 reindex");
    }
}

//! What a probe has found, in sentences.

use csa2_model::config::Values;
use csa2_model::mix::Mode;

use super::{joined, number, percent, value};
use crate::probe::{Diversity, LayerRecord, Mean, ProbeRecord};
use crate::report::format;

/// Two layers whose outputs have a cosine below this, interval included, are called different.
const DIFFERENT: f64 = 0.9;

fn name(record: &ProbeRecord, number: usize) -> String {
    record.layers.iter().find(|layer| layer.layer == number).map_or_else(|| number.to_string(), LayerRecord::name)
}

/// A measure of layers, one after the other: `0.1 in layer 1 full and 0.2 in layer 2 reuse`.
fn told<'a>(measure: &str, layers: impl Iterator<Item = &'a LayerRecord>) -> Vec<String> {
    layers
        .filter_map(|layer| Some(format!("{} in layer {}", value(measure, &layer.mean(measure)?), layer.name())))
        .collect()
}

/// Layers that the sentences about twins speak of.
fn compared(record: &ProbeRecord) -> impl Iterator<Item = &LayerRecord> {
    record.layers.iter().filter(|layer| record.twin.is_none() || layer.has_twin)
}

/// What was found, in sentences.
pub fn answer(record: &ProbeRecord) -> Vec<String> {
    [collapse(record), Some(missed(record)), out_of_reach(record), strangers(record), undecided(record)]
        .into_iter()
        .flatten()
        .collect()
}

/// What was measured besides.
pub fn also(record: &ProbeRecord) -> Vec<String> {
    [repair(record), symmetry(record)].into_iter().flatten().collect()
}

fn collapse(record: &ProbeRecord) -> Option<String> {
    let pairs: Vec<(&Diversity, &Mean)> =
        record.diversity.iter().filter_map(|pair| Some((pair, pair.measures.get("output_cosine")?))).collect();
    if pairs.is_empty() {
        return None;
    }
    let high = |mean: &Mean| mean.mean + mean.half_width.unwrap_or(0.0);
    let alike = pairs.iter().filter(|(_, mean)| high(mean) >= DIFFERENT).count();
    let verdict = match alike {
        0 => "No, they differ.".to_owned(),
        all if all == pairs.len() => "Nearly.".to_owned(),
        some => format!("{some} of {} pairs nearly do.", pairs.len()),
    };
    let cosines: Vec<String> = pairs
        .iter()
        .map(|(pair, mean)| {
            format!("{} for {} and {}", number(mean), name(record, pair.first), name(record, pair.second))
        })
        .collect();
    let apart: Vec<String> =
        pairs.iter().filter_map(|(pair, _)| Some(percent(pair.measures.get("weights_apart")?))).collect();
    Some(format!(
        "Do layers that read the same address do the same? {verdict} The cosine between what they add to the residual stream, each through its own \
         output projection, is {} (1: the same, 0: unrelated; below {DIFFERENT} they count as different). On the same tokens and entries, they place \
         {} of the weight differently.",
        joined(&cosines),
        joined(&apart)
    ))
}

fn missed(record: &ProbeRecord) -> String {
    let missed = told("mass_missed", record.layers.iter());
    let mut out = format!(
        "What does a layer miss? Of the attention that its own queries would spread over everything visible, on entries that it does not read lies \
         {}.",
        joined(&missed)
    );
    if record.layers.iter().all(|layer| layer.mean("overlap").is_none()) {
        out += &format!(
            " No query that was looked at sees more than K = {} entries, so every layer reads all that there is: what is missed is 0 by that, and so is \
             the distance of what a fresh address would give. Longer sequences would say more.",
            record.topk
        );
    }
    out
}

fn out_of_reach(record: &ProbeRecord) -> Option<String> {
    let outside = told("outside_hull", compared(record));
    if outside.is_empty() {
        return None;
    }
    let other = match &record.twin {
        Some(_) => "what a layer reads that makes content, address and query anew at the same input, the twin",
        None => "what the layer would read with the same query at an address of its own, found by an exact search",
    };
    let spanned: Vec<String> = compared(record)
        .filter_map(|layer| Some(format!("{} in layer {}", number(&layer.mean("affine_rank")?), layer.name())))
        .collect();
    Some(format!(
        "Could another query have read {other}? Outside the hull of the layer's points, where no query of it reaches, lie {} of these outputs. The \
         distance from the hull is {}, as a share of the output's length: 0 would be in reach, 1 is as far as the origin, which the sink always \
         offers. The points span {} of {} dimensions, and a part in any other direction is out of reach, however small: a vector of random \
         direction would be {} away at least.",
        joined(&outside),
        joined(&told("hull_distance", compared(record))),
        joined(&spanned),
        record.head_dim,
        random_distance(record)
    ))
}

/// How far a random direction is from the space that the points of a layer span, the origin in it: the root of the share of its squared length
/// in the other dimensions, on average. The least and the most of the layers.
fn random_distance(record: &ProbeRecord) -> String {
    let d = record.head_dim as f64;
    let away = |layer: &LayerRecord| Some((1.0 - layer.mean("affine_rank")?.mean.min(d) / d).sqrt());
    let all: Vec<f64> = compared(record).filter_map(away).collect();
    let (least, most) = (all.iter().copied().fold(1.0, f64::min), all.iter().copied().fold(0.0, f64::max));
    if format!("{least:.2}") == format!("{most:.2}") {
        format!("{least:.2}")
    } else {
        format!("{least:.2} to {most:.2}")
    }
}

/// How far from the hull what the twin reads is that has nothing to do with the query.
fn strangers(record: &ProbeRecord) -> Option<String> {
    let verdicts: Vec<String> = compared(record)
        .filter_map(|layer| {
            let gain = layer.mean("hull_distance_gain")?;
            let verdict = match gain.half_width {
                Some(half) if gain.mean - half > 0.0 => "the interval excludes 0",
                Some(half) if gain.mean + half < 0.0 => "it is farther",
                _ => "the interval includes 0",
            };
            Some(format!("{} in layer {} ({verdict})", number(&gain), layer.name()))
        })
        .collect();
    if verdicts.is_empty() {
        return None;
    }
    let elsewhere = told("hull_distance_elsewhere", compared(record));
    let why = if record.twin.is_some() {
        "A twin run was trained apart and has coordinates of its own, so its outputs can be far from the hull whatever they say. Neither the share \
         outside nor the distance shows a loss then; only the difference to another query's output has to do with the query."
    } else {
        "An output that is no nearer than another query's has nothing of what the query asks for within reach."
    };
    Some(format!(
        "Is that far? For comparison, what the twin reads for another query of the sequence is {} away. The output for the query itself is nearer \
         by {}. {why}",
        joined(&elsewhere),
        joined(&verdicts)
    ))
}

fn undecided(record: &ProbeRecord) -> Option<String> {
    (record.undecided > 0).then(|| {
        let many = format::plural(record.undecided, "question");
        format!("{many} about hulls and families stayed undecided; they are counted nowhere.")
    })
}

fn repair(record: &ProbeRecord) -> Option<String> {
    let repair = told("repair_kl", compared(record));
    if repair.is_empty() {
        return None;
    }
    let all = record.layers.iter().filter_map(|layer| layer.mean("unreachable")).all(|mean| mean.most <= 0.0);
    if all {
        return Some(
            "Is there a re-weighting of the same entries that no query makes? Not at this size: of so few points queries make every one (\"not \
             reached\" is 0), so the layer could have the twin's weights on its own entries. What is out of reach above is other content."
                .into(),
        );
    }
    Some(format!(
        "What of the twin's weights on the same entries does no change of a query repair? In nats of KL, {}.",
        joined(&repair)
    ))
}

fn symmetry(record: &ProbeRecord) -> Option<String> {
    let layers = || record.layers.iter();
    let skew = told("asymmetry_unrotated", layers());
    if skew.is_empty() {
        return None;
    }
    let lowest = told("smallest_eigenvalue_unrotated", layers());
    let heads = || layers().flat_map(|layer| &layer.heads);
    let own = heads().filter_map(|head| head.measures.get("asymmetry")).map(|mean| mean.most).fold(0.0, f64::max);
    let least = heads().filter_map(|head| head.measures.get("smallest_eigenvalue")).map(|mean| mean.least);
    let least = format!("{:.0e}", least.fold(0.0, f64::min)).replace('-', "−");
    let own = format!("{own:.0e}").replace('-', "−");
    let question = "Does the output follow the query, moving along where the query moves?";
    let meaning = "Asymmetry goes from 0 (symmetric) to 2; an eigenvalue below 0 is a direction in which the output moves against the query.";
    Some(match record.values {
        Values::Rotated => format!(
            "{question} Yes, up to rounding: the asymmetry of its derivative is at most {own}, and no eigenvalue is below {least} of the largest, \
             for key and value are one rotated vector. Were values not rotated, the asymmetry would be {}, and the smallest eigenvalue, over the largest, {}. \
             {meaning}",
            joined(&skew),
            joined(&lowest)
        ),
        Values::Unrotated => format!(
            "{question} Not here, where values are not rotated: the asymmetry of its derivative is {}, and the smallest eigenvalue, over the \
             largest, {}. {meaning}",
            joined(&skew),
            joined(&lowest)
        ),
    })
}

/// What the gaps in the table are.
pub fn untwinned(record: &ProbeRecord) -> Option<String> {
    record.twin.as_ref()?;
    let without = |full: bool| {
        let own = move |layer: &&LayerRecord| !layer.has_twin && (layer.mode == Mode::Full) == full;
        let names: Vec<String> = record.layers.iter().filter(own).map(LayerRecord::name).collect();
        (!names.is_empty()).then(|| joined(&names))
    };
    let full = without(true).map(|names| {
        format!("{names}: content and address are made there already, so a twin has nothing to make anew")
    });
    let other = without(false).map(|names| {
        format!("{names}: the twin run's layer of that number is not full with entries of as many tokens")
    });
    let reasons: Vec<String> = full.into_iter().chain(other).collect();
    (!reasons.is_empty()).then(|| {
        format!("– where there is no twin. {}. probe.json compares with a fresh address there.", reasons.join("; "))
    })
}

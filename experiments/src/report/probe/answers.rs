//! What a probe has found, in sentences.

use csa2_model::config::Values;
use csa2_model::mix::Mode;

use super::{joined, number, percent, value};
use crate::probe::{Diversity, LayerRecord, Mean, ProbeRecord};
use crate::report::charts::DIFFERENT;
use crate::report::format;

fn name(record: &ProbeRecord, number: usize) -> String {
    record.layers.iter().find(|layer| layer.layer == number).map_or_else(|| number.to_string(), LayerRecord::name)
}

/// A measure of layers, one after the other: `0.1 in layer 1 full and 0.2 in layer 2 reuse`.
fn told<'a>(measure: &str, layers: impl Iterator<Item = &'a LayerRecord>) -> Vec<String> {
    layers
        .filter_map(|layer| Some(format!("{} in layer {}", value(measure, &layer.mean(measure)?), layer.name())))
        .collect()
}

/// Layers that the sentences about twins speak of: beside a twin run those that lack something of what its layers make.
fn compared(record: &ProbeRecord) -> impl Iterator<Item = &LayerRecord> {
    record.layers.iter().filter(|layer| record.twin.is_none() || (layer.has_twin && layer.mode != Mode::Full))
}

/// Full layers beside a full layer of the twin run.
fn yardsticks(record: &ProbeRecord) -> impl Iterator<Item = &LayerRecord> {
    record.layers.iter().filter(|layer| layer.has_twin && layer.mode == Mode::Full)
}

/// What was found, in sentences.
pub fn answer(record: &ProbeRecord) -> Vec<String> {
    [
        collapse(record),
        Some(missed(record)),
        within_reach(record),
        coordinates(record),
        fresh(record),
        undecided(record),
    ]
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
    let apart = |(pair, _): &(&Diversity, &Mean)| {
        let apart = percent(pair.measures.get("weights_apart")?);
        Some(format!("{apart} between {} and {}", name(record, pair.first), name(record, pair.second)))
    };
    let apart: Vec<String> = pairs.iter().filter_map(apart).collect();
    Some(format!(
        "Do layers that read the same address do the same? {verdict} The cosine between what they add to the residual stream, each through its own \
         output projection, is {} (1: the same, 0: unrelated; below {DIFFERENT}, a convention, they count as different). That includes the output \
         projections, so it can be low where two layers read the same. Of their weight on \
         the same tokens and entries they place differently: {}.",
        joined(&cosines),
        joined(&apart)
    ))
}

fn missed(record: &ProbeRecord) -> String {
    let missed = told("mass_missed", record.layers.iter());
    let mut out = format!(
        "What does a layer miss? Of the attention that its own queries would spread over everything visible, this much would fall on entries that it \
         does not read: {}.",
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

/// How much nearer the twin's output for a query is than for another: all that tells something where coordinates differ.
fn within_reach(record: &ProbeRecord) -> Option<String> {
    record.twin.as_ref()?;
    let found = compared(record).filter_map(part).reduce(f64::max)?;
    let told_of = |layer: &LayerRecord| {
        let (gain, most) = (layer.mean("hull_distance_gain")?, layer.mean("hull_distance_elsewhere")?);
        let part = match part(layer)? {
            none if none <= 0.0 => "no more than chance".into(),
            part => format!("{:.0}%", 100.0 * part),
        };
        Some(format!("{} of {} in layer {} ({part})", number(&gain), number(&most), layer.name()))
    };
    let own: Vec<String> = yardsticks(record).filter_map(told_of).collect();
    let yardstick = yardsticks(record).filter_map(part).reduce(f64::max);
    let verdict = match yardstick {
        // Of twins of another seed 0 to 0.4% are found.
        Some(whole) if whole < 0.05 => {
            "This twin cannot tell: not even a full layer has anything to speak of in reach."
        }
        _ if found <= 0.0 => "Nothing that could be told apart from chance.",
        Some(whole) if found < 0.25 * whole => "Far less than a full layer has, but this does not show a loss.",
        Some(whole) if found < 0.75 * whole => "Less than a full layer has, but this does not show a loss.",
        Some(_) => "As much as a full layer has, or nearly.",
        None => "There is no full layer to compare with.",
    };
    let yardstick = if own.is_empty() {
        String::new()
    } else {
        format!(
            " The yardstick is what a full layer of this run has in reach of the twin run's: {}. With one seed those two began with the same weights, so their vectors \
             have coordinates in common; with two seeds they have none, and such a twin can hardly tell anything. The entries that the other \
             layers select were made with the weights of the full layer before them, those of their twins with weights of their own: these \
             have no coordinates in common, whatever the seeds. Part or all of what is missing can come from that; it cannot be told here from content \
             that is missing or lies at another address.",
            joined(&own)
        )
    };
    Some(format!(
        "How much of what the twin reads, a layer that makes content, address and query anew at the same input, is in reach of a query? {verdict} \
         The twin's output for a query is nearer to the hull of the layer's points than its output for another query of the sequence by {}. It would \
         be all of that if the output were in reach, and 0 if the hull had nothing to do with what the query asks for; the other query is drawn at random and may \
         ask for the same, so this is a lower estimate.{yardstick}",
        joined(&compared(record).filter_map(told_of).collect::<Vec<_>>()),
    ))
}

/// What of the way that another query's output has to the hull the twin's output is spared; 0 where the interval includes none.
fn part(layer: &LayerRecord) -> Option<f64> {
    let (gain, most) = (layer.mean("hull_distance_gain")?, layer.mean("hull_distance_elsewhere")?);
    let above_zero = gain.half_width.is_some_and(|half| gain.mean - half > 0.0);
    Some(if above_zero { gain.mean / most.mean } else { 0.0 })
}

/// What the distance itself is worth beside a run with coordinates of its own.
fn coordinates(record: &ProbeRecord) -> Option<String> {
    record.twin.as_ref()?;
    let outside = told("outside_hull", compared(record));
    if outside.is_empty() {
        return None;
    }
    Some(format!(
        "Is a distance from the hull a loss? Not beside another run, which has coordinates of its own: what it reads can say the same and be far \
         away. Outside the hull are, of its outputs, {}: to be expected where the points span fewer dimensions than a head has. They are {} of their length away (1: as far as the origin, which the sink always offers). \
         Of {} dimensions the points span {}, and a vector of random direction is {} of its length away from those on average.",
        joined(&outside),
        joined(&told("hull_distance", compared(record))),
        record.head_dim,
        joined(&spanned(record)),
        random_distance(record)
    ))
}

fn spanned(record: &ProbeRecord) -> Vec<String> {
    compared(record)
        .filter_map(|layer| Some(format!("{} in layer {}", number(&layer.mean("affine_rank")?), layer.name())))
        .collect()
}

/// Without a twin run: what the layer would read at an address of its own, in its own coordinates.
fn fresh(record: &ProbeRecord) -> Option<String> {
    let outside = told("outside_hull", compared(record));
    if record.twin.is_some() || outside.is_empty() {
        return None;
    }
    let strangers = told("hull_distance_gain", compared(record));
    let strangers = if strangers.is_empty() {
        String::new()
    } else {
        format!(
            " For comparison, what it would read for another query of the sequence is {} away. The output for the query itself is nearer by {}: by 0 \
             the hull would have nothing of what the query asks for.",
            joined(&told("hull_distance_elsewhere", compared(record))),
            joined(&strangers)
        )
    };
    Some(format!(
        "Could another query have read what the layer would read with the same query at an address of its own, found by an exact search? Not all of \
         it where that lies outside the hull of the layer's points: {} of the queries. It is {} of its length away (0: in reach, 1: as \
         far as the origin, which the sink always offers). Of {} dimensions the points span {}, and what is in any other direction is out of reach, \
         however little.{strangers}",
        joined(&outside),
        joined(&told("hull_distance", compared(record))),
        record.head_dim,
        joined(&spanned(record)),
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
             reached\" is 0), so the layer could have the twin's weights on its own entries. What is out of reach is no matter of weights: it is other content, \
             content at another address, or the same content in other coordinates."
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
             for key and value are one vector, rotated by its position (RoPE). Were keys rotated and values not, as is usual, the asymmetry would be {}, and the smallest eigenvalue, over the largest, {}. \
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
    let names: Vec<String> = record.layers.iter().filter(|layer| !layer.has_twin).map(LayerRecord::name).collect();
    (!names.is_empty()).then(|| {
        format!(
            "– not compared: {}. The twin run's layer of that number is not full with entries of as many tokens.",
            joined(&names)
        )
    })
}

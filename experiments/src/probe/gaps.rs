//! What a full layer has and a layer that reuses lacks: the three gaps.
//!
//! The twin is the same layer at the same input with more made fresh. A twin run's layer makes its content, its address and its query anew;
//! without one, the twin has the layer's own content and query, and the address that an exact search with that query gives.

use crate::geometry::{Entries, Family, GeometryError, Hull, Member, Membership, Precision, ReadOut, principal_angles};

use super::measures::RANK;
use super::seat::Seat;

/// How far a head of a layer is from its twin.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct HeadGap {
    /// Distance of the twin's output from the hull of the layer's points (the sink's among them), over the output's length; none where it
    /// could not be decided or the twin reads nothing.
    pub distance: Option<f64>,
    /// Distance of the twin's output from what the layer itself reads, over the output's length.
    pub difference: Option<f64>,
    /// As `distance`, of what the twin reads for another query.
    pub elsewhere: Option<f64>,
    /// KL in nats of the twin's distribution from the member of the layer's family with its mean; only with a twin run; none where it
    /// could not be decided.
    pub repair: Option<f64>,
    /// Distance of what the network's own operator read, in 32 bits, over the length.
    pub operator: f64,
    /// Questions that could not be decided.
    pub undecided: usize,
}

impl HeadGap {
    /// Those that are there, by name.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, f64)> {
        let outside = self.distance.map(|distance| f64::from(u8::from(distance > 0.0)));
        [
            ("operator_difference", Some(self.operator)),
            ("hull_distance", self.distance),
            ("outside_hull", outside),
            ("output_difference", self.difference),
            ("hull_distance_elsewhere", self.elsewhere),
            ("hull_distance_gain", self.elsewhere.zip(self.distance).map(|(other, own)| other - own)),
            ("repair_kl", self.repair),
        ]
        .into_iter()
        .filter_map(|(name, value)| Some((name, value?)))
    }
}

/// How far `head` is from what its twin reads, `target`, and from what the twin reads for another query, `elsewhere`; none where it has no twin.
/// `twin` is that of a twin run.
///
/// # Errors
/// When a number is not finite.
pub fn of_head(
    seat: &Seat,
    head: usize,
    twin: Option<&Seat>,
    target: Option<&[f64]>,
    elsewhere: Option<&[f64]>,
) -> Result<HeadGap, GeometryError> {
    let read = seat.read(head, &seat.selected)?;
    let mut gap = match target {
        Some(target) => outputs(&read.values, &read.output, target)?,
        None => HeadGap::default(),
    };
    gap.operator = relative(&read.output, &seat.output(head));
    if let Some(twin) = twin {
        // The twin's weights over the same tokens and entries.
        let w = twin.read(head, &seat.selected)?.weights;
        match repair(&read.family, &w)? {
            Some(kl) => gap.repair = Some(kl),
            None => gap.undecided += 1,
        }
    }
    if let Some(other) = elsewhere {
        let other = outputs(&read.values, &read.output, other)?;
        gap.elsewhere = other.distance;
        gap.undecided += other.undecided;
    }
    Ok(gap)
}

/// The fresh selection against the one that is read.
pub fn overlap(seat: &Seat, fresh: &[usize]) -> Option<f64> {
    let has_choice = seat.visible > seat.slots;
    let read = fresh.iter().filter(|entry| seat.selected.contains(entry)).count();
    (has_choice && !fresh.is_empty()).then(|| read as f64 / fresh.len() as f64)
}

/// Principal angles between the columns of the layer's points and of the twin's, over the same tokens and entries.
///
/// # Errors
/// When a number is not finite, or the two have not the same points.
pub fn cosines(points: &Entries, twin: &Entries) -> Result<Option<[f64; 2]>, GeometryError> {
    let cosines = principal_angles(points, twin, RANK)?.cosines;
    let Some(&smallest) = cosines.last() else { return Ok(None) };
    Ok(Some([cosines.iter().sum::<f64>() / cosines.len() as f64, smallest]))
}

fn length(values: impl Iterator<Item = f64>) -> f64 {
    values.map(|value| value * value).sum::<f64>().sqrt()
}

/// Distance of `found` from `right`, over the length of that; 0 where both are 0.
fn relative(right: &[f64], found: &[f64]) -> f64 {
    let apart = length(right.iter().zip(found).map(|(right, found)| right - found));
    let whole = length(right.iter().copied());
    if apart == 0.0 { 0.0 } else { apart / whole.max(f64::MIN_POSITIVE) }
}

/// How far the output `target` of a twin is from the hull of `points`, in which all outputs are, and from `own`, what its query does read.
///
/// # Errors
/// When a number is not finite.
fn outputs(points: &Entries, own: &[f64], target: &[f64]) -> Result<HeadGap, GeometryError> {
    let length = length(target.iter().copied());
    let mut gap = HeadGap::default();
    if length == 0.0 {
        return Ok(gap);
    }
    gap.difference = Some(relative(target, own));
    match Hull::new(points, Precision::DEFAULT)?.locate(target)? {
        // Inside up to rounding: its distance is that of the combination found.
        Membership::Inside { .. } => gap.distance = Some(0.0),
        Membership::Outside { distance, .. } => gap.distance = Some(distance / length),
        Membership::Undecided { .. } => gap.undecided += 1,
    }
    Ok(gap)
}

/// What no change of the query repairs of the distribution `w` over the points of `read_out`.
///
/// # Errors
/// When a number is not finite.
fn repair(read_out: &ReadOut, w: &[f64]) -> Result<Option<f64>, GeometryError> {
    let family = Family::new(read_out.clone(), Precision::DEFAULT)?;
    Ok(match family.member(w)? {
        Member::Found { kl, .. } => Some(kl.max(0.0)),
        Member::Undecided { .. } => None,
    })
}

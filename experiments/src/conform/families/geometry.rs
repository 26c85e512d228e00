//! `k_*`: geometry of the read-out, in plain Rust and f64. The JSON's `kind` tells what a case pins.

use serde_json::Value;

use crate::conform::Place;
use crate::conform::case::{Array, Case};
use crate::conform::check::{Check, HOST};
use crate::conform::error::CaseError;
use crate::conform::tolerance::{DISTANCE, GEOMETRY, REACHED, Tolerance};
use crate::geometry::{
    Entries, Family, Largest, Member, Membership, Precision, Reach, ReadOut, affine_rank, principal_angles, rank,
    tilted,
};

/// Compares a case of one kind.
type Run = fn(&mut Check) -> Result<(), CaseError>;

/// The kinds of cases.
const KINDS: [(&str, Run); 5] = [
    ("readout", readout),
    ("hull", hull),
    ("family", family),
    ("angles", angles),
    ("max_probability", max_probability),
];

/// Share of the largest singular value below which one counts as 0: far above rounding, far below what cases are made of.
const RANK: f64 = 1e-9;

/// Compares one case.
///
/// # Errors
/// When the case is not what the family holds, or geometry has no answer to it.
pub fn run(check: &mut Check, _: &Place) -> Result<(), CaseError> {
    check.on = HOST;
    let kind = check.case.text("kind")?;
    if let Some((_, run)) = KINDS.into_iter().find(|(name, _)| *name == kind) {
        return run(check);
    }
    let there = KINDS.map(|(name, _)| name).join(", ");
    Err(CaseError::key("kind", format!("is {kind:?}; there are: {there}")))
}

/// A matrix of the case, one entry a row.
fn entries(case: &Case, name: &str) -> Result<Entries, CaseError> {
    let dims = case.dims::<2>(name)?;
    Entries::new(case.doubles(name, &dims)?.values, dims[1]).map_err(CaseError::geometry(name))
}

/// Whole numbers of the JSON beside those found.
fn whole(check: &mut Check, key: &str, found: &[i64]) -> Result<(), CaseError> {
    let case = check.case;
    let wrong = |found: &Value| CaseError::key(key, format!("is {found}; it must be whole numbers"));
    let value = case.value(key)?;
    let list = value.as_array().map_or_else(|| vec![value.clone()], Clone::clone);
    let values: Option<Vec<i64>> = list.iter().map(Value::as_i64).collect();
    let values = values.ok_or_else(|| wrong(value))?;
    check.equal(key, found, &Array { name: key.into(), dims: vec![values.len()], values });
    Ok(())
}

/// Numbers of the JSON beside those found.
fn numbers(check: &mut Check, key: &str, found: &[f64], tolerance: Tolerance) -> Result<(), CaseError> {
    let value = check.case.value(key)?;
    let list = value.as_array().map_or_else(|| vec![value.clone()], Clone::clone);
    let values: Option<Vec<f64>> = list.iter().map(Value::as_f64).collect();
    let values = values.ok_or_else(|| CaseError::key(key, format!("is {value}; it must be numbers")))?;
    check.close(key, found, &Array { name: key.into(), dims: vec![values.len()], values }, tolerance);
    Ok(())
}

/// Read-outs, Jacobians, tilts and ranks.
fn readout(check: &mut Check) -> Result<(), CaseError> {
    let case = check.case;
    let entries = entries(case, "entries")?;
    let d = entries.width();
    let wrong = || CaseError::geometry("entries");
    let found = rank(&entries, RANK).map_err(wrong())?;
    whole(check, "rank", &[found as i64])?;
    let mut readout = ReadOut::new(entries, case.number("scale")?).map_err(CaseError::geometry("key `scale`"))?;
    if case.find("sink").is_some() {
        readout = readout.with_sink(case.number("sink")?).map_err(CaseError::geometry("key `sink`"))?;
    }
    let found = affine_rank(readout.points(), RANK).map_err(wrong())?;
    whole(check, "affine_rank", &[found as i64])?;

    let n = readout.points().count();
    let [queries, _] = case.dims("q")?;
    let (q, dq) = (case.doubles("q", &[queries, d])?, case.doubles("dq", &[queries, d])?);
    let mut found: [Vec<f64>; 6] = Default::default();
    for (q, dq) in q.rows().zip(dq.rows()) {
        let wrong = || CaseError::geometry("q");
        let reading = readout.read(q).map_err(wrong())?;
        let jacobian = readout.jacobian(q).map_err(wrong())?;
        let tilt = readout.tilt(dq).map_err(CaseError::geometry("dq"))?;
        let p_tilted = tilted(&reading.p, &tilt).map_err(CaseError::geometry("dq"))?;
        let o_tilted = readout.mean(&p_tilted).map_err(CaseError::geometry("dq"))?;
        found[0].extend(&reading.p);
        found[1].extend(&reading.o);
        found[2].push(reading.log_partition);
        found[3].extend((0..d).flat_map(|i| (0..d).map(move |j| (i, j))).map(|place| jacobian[place]));
        found[4].extend(&p_tilted);
        found[5].extend(&o_tilted);
    }
    let names: [(&str, &[usize]); 6] = [
        ("p", &[queries, n]),
        ("o", &[queries, d]),
        ("log_partition", &[queries]),
        ("jacobian", &[queries, d, d]),
        ("p_tilted", &[queries, n]),
        ("o_tilted", &[queries, d]),
    ];
    for ((name, dims), found) in names.into_iter().zip(found) {
        let expected = case.doubles(name, dims)?;
        check.close(name, &found, &expected, GEOMETRY);
    }
    Ok(())
}

/// The tolerance that the JSON gives as `key`, which may be stricter than the family's own.
fn stated(case: &Case, key: &str, own: Tolerance) -> Result<Tolerance, CaseError> {
    let limit = case.number(key)?;
    if limit > 0.0 && limit <= own.limit {
        return Ok(Tolerance { limit, ..own });
    }
    Err(CaseError::key(key, format!("is {limit}; it must be above 0 and at most {}", own.limit)))
}

/// Distances from a hull, and the queries that reach points of its relative interior.
fn hull(check: &mut Check) -> Result<(), CaseError> {
    let case = check.case;
    let (near, reached) = (stated(case, "tolerance_distance", DISTANCE)?, stated(case, "tolerance_reach", REACHED)?);
    let entries = entries(case, "entries")?;
    let d = entries.width();
    let found = affine_rank(&entries, RANK).map_err(CaseError::geometry("entries"))?;
    whole(check, "affine_rank", &[found as i64])?;
    // Uniform prior, scale 1.
    let family = ReadOut::new(entries, 1.0).and_then(|readout| Family::new(readout, Precision::DEFAULT));
    let family = family.map_err(CaseError::geometry("entries"))?;
    let [points, _] = case.dims("points")?;
    let points = case.doubles("points", &[points, d])?;
    let (mut distances, mut labels, mut residuals) = (Vec::new(), Vec::new(), Vec::new());
    for (at, u) in points.rows().enumerate() {
        let what = format!("points[{at}]");
        let undecided = |reason: String| CaseError::Undecided { what: what.clone(), reason };
        let distance = match family.hull().locate(u).map_err(CaseError::geometry(&what))? {
            Membership::Inside { distance, .. } | Membership::Outside { distance, .. } => distance,
            Membership::Undecided { least, most } => {
                return Err(undecided(format!("its distance from the hull is between {least:e} and {most:e}")));
            }
        };
        distances.push(distance);
        match family.reach(u).map_err(CaseError::geometry(&what))? {
            Reach::Reached { residual, .. } => {
                labels.push(1);
                residuals.push(residual);
            }
            Reach::OutsideOrBoundary { .. } => labels.push(if distance <= near.limit { 0 } else { -1 }),
            Reach::Undecided { residual, reason } => {
                return Err(undecided(format!("{reason}; the best output is {residual:e} away")));
            }
        }
    }
    whole(check, "label", &labels)?;
    let expected = case.doubles("distance", &[distances.len()])?;
    check.close("distance", &distances, &expected, near);
    if !residuals.is_empty() {
        let name = "points (distance of the outputs that reach them)";
        let expected = Array { name: name.into(), dims: vec![residuals.len()], values: vec![0.0; residuals.len()] };
        check.close(name, &residuals, &expected, reached);
    }
    Ok(())
}

/// The member of a family with a distribution's mean.
fn family(check: &mut Check) -> Result<(), CaseError> {
    let case = check.case;
    let entries = entries(case, "entries")?;
    let (n, d) = (entries.count(), entries.width());
    let (prior, target) = (case.doubles("prior", &[n])?, case.doubles("target", &[n])?);
    let readout = ReadOut::new(entries, 1.0).map_err(CaseError::geometry("entries"))?;
    let readout = readout.with_prior(&prior.values).map_err(CaseError::geometry("prior"))?;
    let family = Family::new(readout, Precision::DEFAULT).map_err(CaseError::geometry("entries"))?;
    let mean = family.readout().mean(&target.values).map_err(CaseError::geometry("target"))?;
    let expected = case.doubles("mean", &[d])?;
    check.close("mean", &mean, &expected, GEOMETRY);
    match family.member(&target.values).map_err(CaseError::geometry("target"))? {
        Member::Found { p, kl, .. } => {
            let expected = case.doubles("member", &[n])?;
            check.close("member", &p, &expected, GEOMETRY);
            numbers(check, "kl", &[kl], DISTANCE)
        }
        Member::Undecided { reason } => Err(CaseError::Undecided { what: "target".into(), reason: reason.into() }),
    }
}

/// Cosines of the principal angles between two column spaces.
fn angles(check: &mut Check) -> Result<(), CaseError> {
    let case = check.case;
    let (a, b) = (entries(case, "a")?, entries(case, "b")?);
    let found = principal_angles(&a, &b, RANK).map_err(CaseError::geometry("a, b"))?.cosines;
    let [count] = case.dims("cosines")?;
    let expected = case.doubles("cosines", &[count])?;
    check.close("cosines", &found, &expected, GEOMETRY);
    Ok(())
}

/// The largest probability of every entry of every tensor; the JSON holds them under the tensor's name.
fn max_probability(check: &mut Check) -> Result<(), CaseError> {
    let case = check.case;
    for name in case.names() {
        let readout = ReadOut::new(entries(case, name)?, 1.0);
        let family = readout.and_then(|readout| Family::new(readout, Precision::DEFAULT));
        let family = family.map_err(CaseError::geometry(name))?;
        let mut found = Vec::new();
        for index in 0..family.readout().points().count() {
            match family.largest_probability(index).map_err(CaseError::geometry(name))? {
                Largest::Found { supremum, .. } => found.push(supremum),
                Largest::Undecided { reason } => {
                    return Err(CaseError::Undecided { what: format!("{name}[{index}]"), reason: reason.into() });
                }
            }
        }
        numbers(check, name, &found, GEOMETRY)?;
    }
    Ok(())
}

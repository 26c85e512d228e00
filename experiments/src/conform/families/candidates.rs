//! `d_*`: which blocks of entries a query's candidate pool keeps, row by row.

use burn::tensor::{DType, Device, Tensor, TensorData};
use csa2_model::ops::{self, PoolUse, SelectSpec};

use crate::conform::Place;
use crate::conform::case::{Array, Case};
use crate::conform::check::{Check, ints};
use crate::conform::error::CaseError;

/// A score that an entry behind the visible range gets: it must not matter.
const LURE: f32 = 1e6;

/// One row of the case.
struct Row {
    /// Scores of all entries, those behind the visible ones included.
    scores: Vec<f32>,
    visible: usize,
    size: usize,
    blocks: usize,
    /// 1 where an entry is inside the pool.
    mask: Array<i64>,
}

/// Compares one case: the operator in f32 on the backend, in f64 on the CPU.
///
/// # Errors
/// When the case is not what the family holds, or the device fails.
pub fn run(check: &mut Check, place: &Place) -> Result<(), CaseError> {
    let case = check.case;
    let listed = case.value("rows")?.as_array().map_or(0, Vec::len);
    if listed == 0 {
        return Err(CaseError::key("rows", "must list the rows, at least one"));
    }
    let rows: Vec<Row> = (0..listed).map(|at| Row::load(case, at)).collect::<Result<_, _>>()?;
    compare(check, &rows, &place.device, DType::F32, "f32")?;
    place.on_cpu(check, |check, cpu| compare(check, &rows, cpu, DType::F64, "f64"))
}

fn compare(check: &mut Check, rows: &[Row], device: &Device, dtype: DType, format: &str) -> Result<(), CaseError> {
    for row in rows {
        let kept = row.by_operator(device, dtype)?;
        let found: Vec<i64> =
            (0..row.scores.len()).map(|j| i64::from(kept.contains(&((j / row.size) as i64)))).collect();
        check.equal(&format!("{} ({format})", row.mask.name), &found, &row.mask);
    }
    Ok(())
}

impl Row {
    fn load(case: &Case, at: usize) -> Result<Self, CaseError> {
        let about = &case.value("rows")?[at];
        let number = |key: &str| {
            let found = about.get(key).and_then(serde_json::Value::as_u64);
            found
                .map(|number| number as usize)
                .ok_or_else(|| CaseError::key(format!("rows[{at}].{key}"), "must be a whole number"))
        };
        let row = number("row")?;
        let (scores, mask) = (format!("row{row:03}.scores"), format!("row{row:03}.mask"));
        let [entries] = case.dims(&scores)?;
        let (visible, size, blocks) = (number("visible")?, number("block_size")?, number("topk_blocks")?);
        let within = |key: &str, value: usize, least: usize, most: usize| {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(CaseError::key(format!("rows[{at}].{key}"), format!("is {value}; it must be from {least} to {most}")))
        };
        within("n", number("n")?, entries, entries)?;
        within("visible", visible, 0, entries)?;
        within("block_size", size, 1, i32::MAX as usize)?;
        // More blocks than there are entries say nothing more.
        within("topk_blocks", blocks, 1, entries.max(1 << 16))?;
        let row = Self {
            scores: case.singles(&scores, &[entries])?.values,
            visible,
            size,
            blocks,
            mask: case.mask(&mask, &[entries])?,
        };
        if let Some(place) = row.scores.iter().position(|score| score.is_nan()) {
            return Err(CaseError::key(scores, format!("number {place} is NaN; scores must be numbers")));
        }
        row.check_list(about, at)?;
        Ok(row)
    }

    /// The JSON lists the kept blocks, too.
    fn check_list(&self, about: &serde_json::Value, at: usize) -> Result<(), CaseError> {
        let Some(listed) = about.get("kept_blocks") else { return Ok(()) };
        let kept = self.mask.values.chunks(self.size).enumerate().filter(|(_, block)| block[0] == 1);
        let kept: Vec<usize> = kept.map(|(block, _)| block).collect();
        if *listed == serde_json::json!(kept) {
            return Ok(());
        }
        Err(CaseError::key(
            format!("rows[{at}].kept_blocks"),
            format!("is {listed}, but {} keeps {kept:?}", self.mask.name),
        ))
    }

    /// The pool by the operator, from two heads that make any score: `relu(max(s, 0)) - relu(max(-s, 0))`.
    fn by_operator(&self, device: &Device, dtype: DType) -> Result<Vec<i64>, CaseError> {
        let entries = self.scores.len();
        let lured = self.scores.iter().enumerate().map(|(j, &s)| if j < self.visible { s } else { LURE });
        let keys: Vec<f32> = lured.flat_map(|s| [s.max(0.0), (-s).max(0.0)]).collect();
        let keys = Tensor::<3>::from_data(TensorData::new(keys, [1, entries, 2]), (device, dtype));
        let q = Tensor::<4>::from_data([[[[1.0, 0.0], [0.0, 1.0]]]], (device, dtype));
        let weights = Tensor::<3>::from_data([[[1.0, -1.0]]], (device, dtype));
        // One query, the last that sees so many entries; it sees none where its group of two tokens is incomplete.
        let (ratio, start) = if self.visible == 0 { (2, 0) } else { (1, self.visible - 1) };
        let pool = PoolUse::Build { blocks: self.blocks, size: self.size };
        let spec = SelectSpec { ratio, start, entries, topk: 1, pool };
        match ops::index_select(q, keys, weights, None, spec).pool {
            Some(pool) => ints(pool),
            None => Ok(Vec::new()),
        }
    }
}

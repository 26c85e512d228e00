//! Rotary tables, and the rotation itself.

use burn::tensor::{DType, Device, Tensor};
use csa2_model::attention::{RopeTable, rope_frequencies_in};
use csa2_model::config::YarnConfig;

use crate::conform::Place;
use crate::conform::case::{Array, Case};
use crate::conform::check::{Check, HOST, numbers};
use crate::conform::error::CaseError;
use crate::conform::tolerance::COMPONENT;

/// The largest position of a table.
const LONGEST: i64 = 1 << 24;

/// A table of the case.
struct Table {
    name: String,
    frequencies: Vec<f64>,
}

/// Compares tables and rotation.
pub fn run(check: &mut Check, place: &Place) -> Result<(), CaseError> {
    let wrong = || CaseError::key("rope", "must hold one object for each table");
    let names = check.case.value("rope")?.as_object().filter(|tables| !tables.is_empty()).ok_or_else(wrong)?.keys();
    let tables: Vec<Table> = names.map(|name| Table::load(check.case, name)).collect::<Result<_, _>>()?;
    for table in &tables {
        frequencies(check, table)?;
        rows(check, table, &place.device)?;
    }
    rotation(check, &tables, &place.device)
}

impl Table {
    fn load(case: &Case, name: &str) -> Result<Self, CaseError> {
        let key = |key: &str| format!("rope.{name}.{key}");
        let [pairs] = case.dims(&key("inv_freq"))?;
        if case.size(&key("dim"))? != 2 * pairs {
            return Err(CaseError::key(key("dim"), format!("must be {}, twice the frequencies", 2 * pairs)));
        }
        let original_length = case.size(&key("original_seq_len"))?;
        // A table without a training length is not stretched.
        let yarn = YarnConfig {
            factor: case.number(&key("factor"))?,
            original_length,
            beta_fast: case.number(&key("beta_fast"))?,
            beta_slow: case.number(&key("beta_slow"))?,
        };
        let yarn = (original_length > 0).then_some(&yarn);
        let frequencies = rope_frequencies_in(DType::F32, 2 * pairs, case.number(&key("theta"))?, yarn);
        Ok(Self { name: name.into(), frequencies })
    }

    fn name(&self, part: &str) -> String {
        format!("rope.{}.{part}", self.name)
    }
}

/// Frequencies, relatively: the slow ones are far below the tolerance.
fn frequencies(check: &mut Check, table: &Table) -> Result<(), CaseError> {
    let expected = check.case.floats(&table.name("inv_freq"), &[table.frequencies.len()])?;
    let found: Vec<f64> = table.frequencies.iter().zip(&expected.values).map(|(f, e)| f / e).collect();
    let ones = Array { values: vec![1.0; found.len()], ..expected.clone() };
    let on = std::mem::replace(&mut check.on, HOST);
    check.close(&format!("{} (relative)", expected.name), &found, &ones, COMPONENT);
    check.on = on;
    Ok(())
}

/// Cosines and sines at the case's positions.
fn rows(check: &mut Check, table: &Table, device: &Device) -> Result<(), CaseError> {
    let pairs = table.frequencies.len();
    let [count] = check.case.dims(&table.name("positions"))?;
    let positions = check.case.ints(&table.name("positions"), &[count], 0..LONGEST + 1)?.values;
    let (mut cos, mut sin) = (Vec::new(), Vec::new());
    for position in positions {
        // Row 1 of a table whose stride is the position.
        let at = RopeTable::new(&table.frequencies, 2, position as usize, DType::F32, device);
        cos.extend(numbers(at.cos())?.split_off(pairs));
        sin.extend(numbers(at.sin())?.split_off(pairs));
    }
    for (part, found) in [("cos", cos), ("sin", sin)] {
        let expected = check.case.floats(&table.name(part), &[count, pairs])?;
        check.close(&expected.name, &found, &expected, COMPONENT);
    }
    Ok(())
}

/// The rotation at positions 0, 1, 2, ..., forwards and backwards. The case does not say by which of its tables: it must be one
/// of them, the same for both.
fn rotation(check: &mut Check, tables: &[Table], device: &Device) -> Result<(), CaseError> {
    let case = check.case;
    let dims: [usize; 4] = case.dims("rope_apply.x")?;
    let [_, positions, _, channels] = dims;
    let x = case.tensor::<4>("rope_apply.x", dims, device, DType::F32)?;
    let expected = case.floats("rope_apply.y", &dims)?;
    let mut best: Option<(f64, RopeTable, Vec<f64>)> = None;
    for table in tables.iter().filter(|table| 2 * table.frequencies.len() <= channels) {
        let table = RopeTable::new(&table.frequencies, positions, 1, DType::F32, device);
        let found = numbers(table.rotate(x.clone()))?;
        let off = found.iter().zip(&expected.values).map(|(f, e)| (f - e).abs()).fold(0.0, f64::max);
        if best.as_ref().is_none_or(|(least, _, _)| off < *least) {
            best = Some((off, table, found));
        }
    }
    let Some((_, table, found)) = best else {
        let expected = "channels for one of the tables to turn".into();
        return Err(CaseError::Shape { name: "rope_apply.x".into(), found: dims.into(), expected });
    };
    check.close("rope_apply.y", &found, &expected, COMPONENT);
    let back: Tensor<4> = table.rotate_back(x);
    check.tensor("rope_apply.y_inverse", back, COMPONENT)
}

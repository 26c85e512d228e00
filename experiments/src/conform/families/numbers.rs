//! `e_*`: codes, scales and dequantized values of the three number formats, to the last bit.

use burn::tensor::{DType, Tensor, TensorData, bf16};
use csa2_model::ops;
use csa2_model::quant::{Format, fake_quantize, pack, unpack};

use crate::conform::Place;
use crate::conform::check::{Check, HOST};
use crate::conform::error::CaseError;

/// The formats, as the case names them.
const FORMATS: [(Format, &str); 3] =
    [(Format::Fp4E4m3, "fp4_e4m3_g16"), (Format::Fp4E8m0, "fp4_e8m0_g32"), (Format::Fp8E8m0, "fp8_e8m0_g32")];

/// Largest number of a group below which the window's format takes this one in its place.
const FLOOR: f32 = 1e-4;

/// Compares one case.
///
/// # Errors
/// When the case is not what the family holds.
pub fn run(check: &mut Check, place: &Place) -> Result<(), CaseError> {
    check.on = HOST;
    single_codes(check)?;
    scales(check)?;
    for (format, name) in FORMATS {
        groups(check, place, format, name)?;
    }
    Ok(())
}

fn codes(values: impl Iterator<Item = u8>) -> Vec<i64> {
    values.map(i64::from).collect()
}

/// Compares to the last bit with the tensor that the case holds as `name`.
fn bits(check: &mut Check, name: &str, found: &[f32], dims: &[usize]) -> Result<(), CaseError> {
    let expected = check.case.singles(name, dims)?;
    check.bits(name, found, &expected);
    Ok(())
}

/// Numbers that are coded alone, without a scale.
fn single_codes(check: &mut Check) -> Result<(), CaseError> {
    let case = check.case;
    let dims = case.dims::<1>("e2m1_round.x")?;
    let x = case.singles("e2m1_round.x", &dims)?.values;
    let found: Vec<u8> = x.into_iter().map(|x| Format::Fp4E8m0.encode(x)).collect();
    let expected = case.octets("e2m1_round.code", &dims)?;
    check.equal("e2m1_round.code", &codes(found.iter().copied()), &expected);
    let back: Vec<f32> = found.into_iter().map(|code| Format::Fp4E8m0.decode(code)).collect();
    bits(check, "e2m1_round.y", &back, &dims)?;

    let dims = case.dims::<1>("e4m3_round.x")?;
    let round = |x| Format::Fp8E8m0.decode(Format::Fp8E8m0.encode(x));
    let found: Vec<f32> = case.singles("e4m3_round.x", &dims)?.values.into_iter().map(round).collect();
    bits(check, "e4m3_round.y", &found, &dims)?;
    let all: Vec<f32> = (0..=255).map(|code| Format::Fp8E8m0.decode(code)).collect();
    bits(check, "e4m3_decode", &all, &[256])
}

/// Scales that are powers of two, from the largest number of a group.
fn scales(check: &mut Check) -> Result<(), CaseError> {
    let dims = check.case.dims::<1>("pow2_scale.amax")?;
    let swept = check.case.singles("pow2_scale.amax", &dims)?.values;
    for (format, name) in [(Format::Fp4E8m0, "pow2_scale.fp4"), (Format::Fp8E8m0, "pow2_scale.fp8")] {
        let found: Vec<f32> = swept.iter().map(|&largest| power_of_two(format, largest)).collect();
        bits(check, name, &found, &dims)?;
    }
    Ok(())
}

/// The scale of a group, without the window format's floor, which the sweep leaves out: twice the numbers have twice the
/// scale, so that a small one is raised above the floor and lowered again.
fn power_of_two(format: Format, largest: f32) -> f32 {
    let mut raised = 1.0;
    while format == Format::Fp8E8m0 && largest > 0.0 && largest * raised < FLOOR {
        raised *= 2.0;
    }
    format.scale(largest * raised).0 / raised
}

/// Whole groups, one a row.
fn groups(check: &mut Check, place: &Place, format: Format, name: &str) -> Result<(), CaseError> {
    let case = check.case;
    let part = |part: &str| format!("{name}.{part}");
    let [rows, group] = case.dims(&part("x"))?;
    if group != format.group() {
        let expected = format!("rows of {}, the group of this format", format.group());
        return Err(CaseError::Shape { name: part("x"), found: vec![rows, group], expected });
    }
    let dims = [rows, group];
    let x = case.singles(&part("x"), &dims)?.values;
    let wrong = |error| CaseError::Format { file: part("x"), wrong: format!("{error}") };
    let packed = pack(&x, format).map_err(wrong)?;
    let scales: Vec<f32> = packed.scales.iter().map(|&byte| format.stored_scale(byte)).collect();
    bits(check, &part("scale"), &scales, &[rows, 1])?;
    let found = match format.bits() {
        4 => codes(packed.codes.iter().flat_map(|byte| [byte & 15, byte >> 4])),
        _ => codes(packed.codes.iter().copied()),
    };
    check.equal(&part("codes"), &found, &case.octets(&part("codes"), &dims)?);
    let expected = case.singles(&part("dequant"), &dims)?;
    check.bits(&part("dequant"), &unpack(&packed).map_err(wrong)?, &expected);
    // The operator that layers use, on the backend.
    let tensor = Tensor::<2>::from_data(TensorData::new(x, dims), (&place.device, DType::F32));
    let faked = ops::fake_quantize(tensor, format).try_into_data()?;
    check.on = place.backend.name();
    check.bits(&format!("{} (operator)", part("dequant")), &faked.iter::<f32>().collect::<Vec<_>>(), &expected);
    check.on = HOST;

    // The same in bf16: what is read back is rounded to it.
    let mut x = case.singles(&part("bf16_x"), &dims)?.values;
    fake_quantize(&mut x, format);
    let x: Vec<f32> = x.into_iter().map(|x| bf16::from_f32(x).to_f32()).collect();
    bits(check, &part("bf16_dequant"), &x, &dims)
}

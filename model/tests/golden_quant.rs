//! Quantized numbers against the golden case `e_quant`, and against what their definitions imply.
#![cfg(feature = "flex")]

mod common;

use burn::tensor::{DType, Device, Tensor, TensorData};
use common::Golden;
use csa2_model::ops;
use csa2_model::quant::{Format, QuantError, fake_quantize, pack, unpack};

fn floats(golden: &Golden, name: &str) -> Vec<f32> {
    golden.values(name).iter().map(|&x| x as f32).collect()
}

/// Equal to the last bit, the sign of a zero included.
fn assert_same(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    assert!(!expected.is_empty(), "{what}");
    for (at, (a, e)) in found.iter().zip(expected).enumerate() {
        assert!(a.to_bits() == e.to_bits() || (a.is_nan() && e.is_nan()), "{what}[{at}]: {a} instead of {e}");
    }
}

const NAMES: [(Format, &str); 3] =
    [(Format::Fp4E4m3, "fp4_e4m3_g16"), (Format::Fp4E8m0, "fp4_e8m0_g32"), (Format::Fp8E8m0, "fp8_e8m0_g32")];

#[test]
fn codes_of_single_numbers() {
    let golden = Golden::load("e_quant");
    let x = floats(&golden, "e2m1_round.x");
    let codes: Vec<u8> = x.iter().map(|&x| Format::Fp4E8m0.encode(x)).collect();
    let expected: Vec<u8> = golden.values("e2m1_round.code").iter().map(|&code| code as u8).collect();
    assert_eq!(codes, expected);
    let back: Vec<f32> = codes.iter().map(|&code| Format::Fp4E8m0.decode(code)).collect();
    assert_same("E2M1", &back, &floats(&golden, "e2m1_round.y"));
    let round = |&x: &f32| Format::Fp8E8m0.decode(Format::Fp8E8m0.encode(x));
    let back: Vec<f32> = floats(&golden, "e4m3_round.x").iter().map(round).collect();
    assert_same("E4M3", &back, &floats(&golden, "e4m3_round.y"));
    let all: Vec<f32> = (0..=255).map(|code| Format::Fp8E8m0.decode(code)).collect();
    assert_same("E4M3 codes", &all, &floats(&golden, "e4m3_decode"));
}

#[test]
fn scales_that_are_powers_of_two() {
    let golden = Golden::load("e_quant");
    // The sweep is of the power of two alone; the floor of 1e-4 that a group of E4M3 has comes on top.
    for (format, name, floor) in
        [(Format::Fp4E8m0, "pow2_scale.fp4", 0.0), (Format::Fp8E8m0, "pow2_scale.fp8", 1e-4_f32)]
    {
        let (swept, expected) = (floats(&golden, "pow2_scale.amax"), floats(&golden, name));
        let above = || swept.iter().zip(&expected).filter(|(largest, _)| **largest >= floor);
        assert!(above().count() > 400);
        let (scales, bytes): (Vec<f32>, Vec<u8>) = above().map(|(&largest, _)| format.scale(largest)).unzip();
        assert_same(name, &scales, &above().map(|(_, &scale)| scale).collect::<Vec<f32>>());
        let stored: Vec<f32> = bytes.into_iter().map(|byte| format.stored_scale(byte)).collect();
        assert_same(name, &stored, &scales);
        for &largest in swept.iter().filter(|&&largest| largest < floor) {
            assert_eq!(format.scale(largest), format.scale(floor));
        }
    }
}

#[test]
fn groups() {
    let golden = Golden::load("e_quant");
    for (format, name) in NAMES {
        let x = floats(&golden, &format!("{name}.x"));
        let packed = pack(&x, format).unwrap();
        let scales: Vec<f32> = packed.scales.iter().map(|&byte| format.stored_scale(byte)).collect();
        assert_same(name, &scales, &floats(&golden, &format!("{name}.scale")));
        let expected: Vec<u8> = golden.values(&format!("{name}.codes")).iter().map(|&code| code as u8).collect();
        let codes: Vec<u8> = match format.bits() {
            4 => packed.codes.iter().flat_map(|byte| [byte & 15, byte >> 4]).collect(),
            _ => packed.codes.clone(),
        };
        assert_eq!(codes, expected, "{name}");
        assert_eq!(packed.codes.len() * 8, x.len() * format.bits());
        let back = unpack(&packed).unwrap();
        assert_same(name, &back, &floats(&golden, &format!("{name}.dequant")));
        for dtype in [DType::F32, DType::F64] {
            let x = TensorData::new(x.clone(), [x.len()]);
            let operator = ops::fake_quantize(Tensor::<1>::from_data(x, (&Device::flex(), dtype)), format);
            let found: Vec<f32> = operator.into_data().convert::<f32>().try_to_vec().unwrap();
            assert_same(&format!("{name} by the operator, {dtype:?}"), &found, &back);
        }
        let mut faked = x;
        fake_quantize(&mut faked, format);
        assert_same(name, &faked, &back);
    }
}

/// The same groups in bf16: what is read back is rounded to bf16.
#[test]
fn groups_in_bf16() {
    let golden = Golden::load("e_quant");
    let rounded = |x: f32| burn::tensor::bf16::from_f32(x).to_f32();
    for (format, name) in NAMES {
        let mut x = floats(&golden, &format!("{name}.bf16_x"));
        fake_quantize(&mut x, format);
        let x: Vec<f32> = x.into_iter().map(rounded).collect();
        assert_same(name, &x, &floats(&golden, &format!("{name}.bf16_dequant")));
    }
}

/// Every code that a group can hold comes back as itself.
#[test]
fn what_was_quantized_stays() {
    for format in Format::ALL {
        let group = format.group();
        let mut values: Vec<f32> = (0..8 * group).map(|i| ((i * 37 % 101) as f32 - 50.0) * 0.173).collect();
        fake_quantize(&mut values, format);
        // A second time changes nothing unless the largest number has become smaller; with powers of two it has not.
        if format != Format::Fp4E4m3 {
            let once = values.clone();
            fake_quantize(&mut values, format);
            assert_same("twice", &values, &once);
        }
        assert_eq!(unpack(&pack(&values, format).unwrap()).unwrap().len(), values.len());
        let mut zeros = vec![0.0; group];
        fake_quantize(&mut zeros, format);
        assert_same("zeros", &zeros, &vec![0.0; group]);
    }
}

#[test]
fn what_cannot_be_stored_is_told() {
    for format in Format::ALL {
        let group = format.group();
        assert_eq!(pack(&vec![1.0; group + 1], format), Err(QuantError::Groups { count: group + 1, group }));
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut values = vec![1.0; 2 * group];
            values[group + 3] = value;
            let error = pack(&values, format).unwrap_err();
            assert_eq!(error, QuantError::NotFinite { at: group + 3, value: value.to_string() });
            // In training the fault must surface, and only in its group.
            fake_quantize(&mut values, format);
            assert!(values[..group].iter().all(|x| x.is_finite()) && values[group..].iter().all(|x| x.is_nan()));
        }
        let mut packed = pack(&vec![1.0; 2 * group], format).unwrap();
        packed.scales.pop();
        assert!(matches!(unpack(&packed), Err(QuantError::Sizes { expected: 2, scales: 1, .. })));
        packed.codes.pop();
        assert!(unpack(&packed).unwrap_err().to_string().contains("of codes need"));
    }
}

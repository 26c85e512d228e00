//! Fake quantization, against the function on the host: every bit must be the same.

use burn::tensor::{DType, Device, Tensor, TensorData};
use csa2_model::ops;
use csa2_model::quant::{Format, fake_quantize};
use rand::RngExt;

use super::common::numbers;
use super::common::random::Source;
use super::driver::{Array, Case, Operator, Place, Results, Side, gradient};
use super::{cases, copied};

/// Vectors of some groups each; a case stands for all formats.
#[derive(Clone, Copy, Debug)]
pub struct Quantize {
    pub batch: usize,
    pub seq: usize,
    pub groups: usize,
    pub values: Values,
    pub views: bool,
    pub format: Format,
}

/// What the numbers of a group are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    Normal,
    /// Zeros of either sign.
    Zeros,
    /// Below the smallest number with a leading one, or a little above it.
    Subnormal,
    /// Near the largest number there is.
    Huge,
    /// Of any size, those of a group within a few powers of two.
    Bits,
    /// Half-way between two codes times the scale, or next to that on either side.
    Ties,
    /// The largest is where the scale changes, or next to that on either side.
    ScaleTies,
    /// In every second group something is not a number.
    Marked,
}

/// `x` or one of its two neighbours.
fn nudged(source: &mut Source, x: f32) -> f32 {
    [x.next_down(), x, x.next_up()][source.0.random_range(0..3)]
}

impl Quantize {
    fn dims(&self) -> [usize; 3] {
        [self.batch, self.seq, self.groups * self.format.group()]
    }

    /// Half-way between a code and the next one.
    fn midpoint(format: Format, code: u8) -> f32 {
        f32::midpoint(format.decode(code), format.decode(code + 1))
    }

    /// The largest code of the format, without its sign.
    fn last_code(&self) -> u8 {
        if self.format.bits() == 4 { 7 } else { 126 }
    }

    /// A scale of the format that is not beyond where its smallest one ends.
    fn scale(&self, source: &mut Source) -> f32 {
        match self.format {
            Format::Fp4E4m3 => Format::Fp8E8m0.decode(source.0.random_range(1..127)),
            Format::Fp4E8m0 => 2.0_f32.powi(source.0.random_range(-126..126)),
            Format::Fp8E8m0 => 2.0_f32.powi(source.0.random_range(-20..119)),
        }
    }

    fn group(&self, source: &mut Source, number: usize) -> Vec<f32> {
        let count = self.format.group();
        let top = self.format.decode(self.last_code());
        let mut x: Vec<f32> = source.normals(count).into_iter().map(|x| x as f32).collect();
        match self.values {
            Values::Normal => {}
            Values::Zeros => x.iter_mut().for_each(|x| *x *= 0.0),
            Values::Subnormal => x.iter_mut().for_each(|x| *x *= 2.0 * f32::MIN_POSITIVE),
            Values::Huge => x.iter_mut().for_each(|x| *x *= f32::MAX / 6.0),
            Values::Bits => {
                let base = source.0.random_range(0..255);
                for x in &mut x {
                    let exponent = 0.max(base - source.0.random_range(0..9)) as u32;
                    let rest = source.0.random_range(0..1 << 24);
                    *x = f32::from_bits(rest >> 23 << 31 | exponent << 23 | rest & 0x7f_ffff);
                }
            }
            Values::Ties => {
                let scale = self.scale(source);
                for x in &mut x {
                    let middle = Self::midpoint(self.format, source.0.random_range(0..self.last_code())) * scale;
                    *x = nudged(source, middle).copysign(*x);
                }
                x[number % count] = top * scale;
            }
            Values::ScaleTies => {
                let scale = match self.format {
                    Format::Fp4E4m3 => Self::midpoint(Format::Fp8E8m0, source.0.random_range(0..126)),
                    _ => self.scale(source),
                };
                let largest = nudged(source, top * scale);
                for x in &mut x {
                    *x = x.clamp(-4.0, 4.0) / 4.0 * largest;
                }
                x[number % count] = -largest;
            }
            Values::Marked => {
                let marks = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
                if number % 2 == 1 {
                    x[number % count] = marks[number / 2 % 3];
                }
            }
        }
        x
    }
}

impl Operator for Quantize {
    const NAME: &'static str = "fake_quantize";
    const REPEATS: u64 = 3;
    /// The vectors and the gradient.
    type Inputs = [Array<f64, 3>; 2];

    fn table() -> &'static [Case<Self>] {
        cases::QUANTIZE
    }

    fn variants(self) -> Vec<Self> {
        Format::ALL.into_iter().map(|format| Self { format, ..self }).collect()
    }

    fn inputs(&self, source: &mut Source) -> Self::Inputs {
        let groups = self.batch * self.seq * self.groups;
        let x = (0..groups).flat_map(|number| self.group(source, number)).map(f64::from).collect();
        [Array::new(x, self.dims()), Array::normal(source, self.dims())]
    }

    fn run(&self, side: Side, [x, grad]: &Self::Inputs, place: &Place) -> Results {
        let (quantized, gradient) = match side {
            Side::Operator => {
                let place = place.with_views(self.views);
                let x = place.leaf(x);
                let y = ops::fake_quantize(x.clone(), self.format);
                let grads = (y.clone() * place.constant(grad)).sum().backward();
                (numbers(y), gradient(&x, &grads))
            }
            Side::Reference => {
                let mut y: Vec<f32> = x.values.iter().map(|&x| x as f32).collect();
                fake_quantize(&mut y, self.format);
                (y.into_iter().map(f64::from).collect(), grad.values.clone())
            }
        };
        vec![("quantized", quantized), ("gradient", gradient)]
    }

    fn compare(&self, what: &str, [x, _]: &Self::Inputs, found: &Results, expected: &Results, _: &Place) {
        for ((name, found), (_, expected)) in found.iter().zip(expected) {
            assert_eq!(found.len(), expected.len(), "{what}: {name}");
            for (at, (a, e)) in found.iter().zip(expected).enumerate() {
                let same = a.to_bits() == e.to_bits() || (a.is_nan() && e.is_nan());
                assert!(same, "{what}: {name}[{at}]: {a:e} instead of {e:e}, from {:e}", x.values[at]);
            }
        }
    }
}

/// What the inputs are for must happen: otherwise a case tests nothing.
#[test]
fn inputs_are_what_they_are_called() {
    for case in cases::QUANTIZE {
        for operator in case.operator.variants() {
            let [x, _] = operator.inputs(&mut Source::new(1));
            let mut y: Vec<f32> = x.values.iter().map(|&x| x as f32).collect();
            let x = y.clone();
            fake_quantize(&mut y, operator.format);
            let share = |holds: &dyn Fn(f32, f32) -> bool| {
                x.iter().zip(&y).filter(|(x, y)| holds(**x, **y)).count() as f64 / x.len() as f64
            };
            let what = format!("{}: {operator:?}", case.name);
            match operator.values {
                Values::Normal | Values::Ties | Values::ScaleTies | Values::Bits => {
                    assert!(share(&|_, y| y.is_finite() && y != 0.0) > 0.4, "{what}");
                }
                Values::Zeros => {
                    assert!(share(&|_, y| y.to_bits() == 0) > 0.3 && share(&|_, y| y.to_bits() == 1 << 31) > 0.3);
                }
                Values::Subnormal => {
                    assert!(share(&|x, _| x.is_subnormal()) > 0.2, "{what}");
                    // The other formats have nothing so small.
                    let some = share(&|_, y| y.is_subnormal());
                    assert_eq!(some > 0.1, operator.format == Format::Fp4E8m0, "{what}");
                }
                Values::Huge => assert!(share(&|x, _| x.abs() > 1e37) > 0.5, "{what}"),
                Values::Marked => assert!((share(&|_, y| y.is_nan()) - 0.5).abs() < 0.1, "{what}"),
            }
        }
    }
}

/// Where nobody else holds the vectors, they are overwritten; the numbers are the same.
#[test]
fn vectors_that_are_held_elsewhere_stay() {
    for format in Format::ALL {
        let x = Source::new(2).normal([3, 5, 64], &Device::flex(), DType::F32);
        let (before, kept) = (numbers(x.clone()), copied(&x));
        let first = ops::fake_quantize(x.clone(), format);
        assert_eq!(numbers(x.clone()), before);
        assert_eq!(numbers(ops::fake_quantize(x, format)), numbers(first));
        assert_eq!(numbers(kept), before);
    }
}

#[test]
fn numbers_in_f64_are_rounded_to_f32_first() {
    let values: Vec<f64> = Source::new(3).normals(64).into_iter().map(|x| x * 1e-3).chain([1e300; 32]).collect();
    for format in Format::ALL {
        let x = Tensor::<1>::from_data(TensorData::new(values.clone(), [96]), (&Device::flex(), DType::F64));
        let mut expected: Vec<f32> = values.iter().map(|&x| x as f32).collect();
        assert!(expected.iter().zip(&values).any(|(&single, x)| f64::from(single).to_bits() != x.to_bits()));
        fake_quantize(&mut expected, format);
        let y = ops::fake_quantize(x, format);
        assert_eq!(y.dtype(), DType::F64);
        let y = numbers(y);
        assert!(
            y.iter().zip(&expected).all(|(&y, &e)| y.to_bits() == f64::from(e).to_bits() || y.is_nan() && e.is_nan())
        );
        assert!(y[..64].iter().all(|y| y.is_finite()) && y[64..].iter().all(|y| y.is_nan()), "beyond f32");
    }
}

#[test]
#[should_panic(expected = "fake_quantize: vectors of 24 channels are not whole groups of 16")]
fn vectors_that_are_not_whole_groups_are_refused() {
    let _ = ops::fake_quantize(Tensor::<2>::zeros([16, 24], &Device::flex()), Format::Fp4E4m3);
}

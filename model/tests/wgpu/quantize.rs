use burn::tensor::{DType, Device, Tensor, TensorData};
use csa2_model::attention::{Context, Shared, Trace};
use csa2_model::config::{QuantFormat, QuantizationConfig};
use csa2_model::ops;
use csa2_model::quant::{Format, fake_quantize};

use super::common::random::Source;
use super::common::{Golden, small};
use super::device;

/// Fails unless all bits are equal, the sign of a zero included.
fn assert_same(what: &str, found: &[f32], expected: &[f32]) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (at, (a, e)) in found.iter().zip(expected).enumerate() {
        assert!(a.to_bits() == e.to_bits() || (a.is_nan() && e.is_nan()), "{what}[{at}]: {a} instead of {e}");
    }
}

/// By the host's function.
fn stored<const D: usize>(x: Tensor<D>, format: Format) -> Vec<f32> {
    let mut values = small::floats(x);
    fake_quantize(&mut values, format);
    values
}

#[test]
fn golden_groups() {
    let Some(wgpu) = device() else { return };
    let golden = Golden::load("e_quant");
    for (format, name) in
        [(Format::Fp4E4m3, "fp4_e4m3_g16"), (Format::Fp4E8m0, "fp4_e8m0_g32"), (Format::Fp8E8m0, "fp8_e8m0_g32")]
    {
        let read = |part: &str| -> Vec<f32> {
            golden.values(&format!("{name}.{part}")).into_iter().map(|x| x as f32).collect()
        };
        let x = read("x");
        let x = Tensor::<1>::from_data(TensorData::new(x.clone(), [x.len()]), &wgpu);
        assert_same(name, &small::floats(ops::fake_quantize(x, format)), &read("dequant"));
    }
}

#[test]
fn half_precision() {
    let Some(wgpu) = device() else { return };
    if !wgpu.supports_dtype(DType::F16) {
        println!("no f16 on this adapter: 1 case not run");
        return;
    }
    for format in Format::ALL {
        let x = Source::new(4).normal([3, 5, 64], &wgpu, DType::F16);
        let y = ops::fake_quantize(x.clone(), format);
        assert_eq!(y.dtype(), DType::F16);
        // Results near 1 have fewer digits than an f16.
        assert_same(&format!("{format:?}"), &small::floats(y), &stored(x, format));
    }
}

/// A layer's vectors on the device, quantized or not.
fn trace(wgpu: &Device, quantize: bool) -> Trace {
    let formats = QuantizationConfig { main_kv: QuantFormat::Fp4, index: QuantFormat::Fp4, window: QuantFormat::Fp8 };
    let config = small::quantized("full@2", formats);
    let model = small::model(&config, 1, wgpu);
    let cx = Context::new(&config, 13, DType::F32, wgpu).with_trace(true).with_quantization(quantize);
    let x = Source::new(3).normal([2, 13, config.d_model], wgpu, DType::F32);
    model.layers()[0].attention().forward(x, &mut Shared::default(), &cx).trace.unwrap()
}

#[test]
fn a_layer_reads_what_the_host_makes_of_its_vectors() {
    let Some(wgpu) = device() else { return };
    let (plain, found) = (trace(&wgpu, false), trace(&wgpu, true));
    let (plain_content, content) = (plain.content.unwrap(), found.content.unwrap());
    let (plain_query, query) = (plain.index_query.unwrap(), found.index_query.unwrap());
    let bits = |name: &str, found: Vec<f32>, expected: Vec<f32>| assert_same(name, &found, &expected);
    bits("window", small::floats(found.window), stored(plain.window, Format::Fp8E8m0));
    bits("main KV", small::floats(content.main), stored(plain_content.main, Format::Fp4E4m3));
    let (keys, plain_keys) = (content.index_keys.unwrap(), plain_content.index_keys.unwrap());
    bits("index keys", small::floats(keys), stored(plain_keys, Format::Fp4E8m0));
    bits("index queries", small::floats(query.q), stored(plain_query.q, Format::Fp4E8m0));
}

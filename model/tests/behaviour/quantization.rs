//! What a quantized layer computes with, and when.

use burn::tensor::{DType, Device, Tensor};
use csa2_model::attention::{Context, Phase, Shared, Trace};
use csa2_model::config::{ModelConfig, QuantFormat, QuantizationConfig};
use csa2_model::model::Model;
use csa2_model::quant::{Format, fake_quantize};

use super::common::random::Source;
use super::common::small::{self, FORMATS, MIXES};
use super::{PHASES, model, tokens};

const SHAPE: [usize; 2] = [2, 13];

/// Intermediate values of every layer, each over the same input, so that layers differ by what is handed down alone.
fn traces(model: &Model, config: &ModelConfig, phase: Phase, quantize: bool) -> Vec<Trace> {
    let device = Device::flex();
    let cx = Context::new(config, SHAPE[1], DType::F32, &device);
    let cx = cx.with_phase(phase).with_trace(true).with_quantization(quantize);
    let x = Source::new(3).normal([SHAPE[0], SHAPE[1], config.d_model], &device, DType::F32);
    let mut handed = Shared::default();
    let trace =
        |block: &csa2_model::block::Block| block.attention().forward(x.clone(), &mut handed, &cx).trace.unwrap();
    model.layers().iter().map(trace).collect()
}

/// The bits of `x` after the host's quantizer.
fn stored<const D: usize>(x: Tensor<D>, format: Option<Format>) -> Vec<u32> {
    let mut values = small::floats(x);
    if let Some(format) = format {
        fake_quantize(&mut values, format);
    }
    small::bits(&values)
}

fn bits<const D: usize>(x: Tensor<D>) -> Vec<u32> {
    small::bits(&small::floats(x))
}

/// How a part is stored, by the specification's table: latents in FP4 have an E4M3 scale, index vectors a power of two.
fn formats(quantization: QuantizationConfig) -> [Option<Format>; 3] {
    let format = |part, fp4| match part {
        QuantFormat::None => None,
        QuantFormat::Fp8 => Some(Format::Fp8E8m0),
        QuantFormat::Fp4 => Some(fp4),
    };
    let QuantizationConfig { main_kv, index, window } = quantization;
    [format(main_kv, Format::Fp4E4m3), format(index, Format::Fp4E8m0), format(window, Format::Fp4E4m3)]
}

/// That layers read, score and select with these very vectors is for `composition` and for the whole network in plain numbers.
#[test]
fn each_part_is_what_the_host_makes_of_the_unquantized_one() {
    for mix in MIXES {
        for quantization in FORMATS {
            let config = small::quantized(mix, quantization);
            let model = model(&config);
            let [main_kv, index, window] = formats(quantization);
            for phase in PHASES {
                let plain = traces(&model, &config, phase, false);
                let found = traces(&model, &config, phase, true);
                for (layer, (found, plain)) in config.layers.layers().iter().zip(found.into_iter().zip(plain)) {
                    let what = format!("{mix} {quantization:?} layer {}", layer.index);
                    assert!(bits(found.window) == stored(plain.window, window), "{what}: window");
                    assert!(bits(found.q) == bits(plain.q) && bits(found.qr) == bits(plain.qr), "{what}: query");
                    assert_eq!(found.latent.map(bits), plain.latent.map(bits), "{what}: latents before rotation");
                    if let (Some(found), Some(plain)) = (found.content, plain.content) {
                        assert!(bits(found.main) == stored(plain.main, main_kv), "{what}: main KV");
                        let keys = plain.index_keys.map(|keys| stored(keys, index));
                        assert_eq!(found.index_keys.map(bits), keys, "{what}: index keys");
                    }
                    if let (Some(found), Some(plain)) = (found.index_query, plain.index_query) {
                        assert!(bits(found.q) == stored(plain.q, index), "{what}: index queries");
                        assert!(bits(found.weights) == bits(plain.weights), "{what}: head weights");
                    }
                }
            }
        }
    }
}

/// The logits' and index losses' bits of one pass.
fn outcome(config: &ModelConfig, settings: impl FnOnce(Context) -> Context) -> Vec<Vec<u32>> {
    let out = small::forward(&model(config), config, &tokens(SHAPE), SHAPE, |cx| settings(cx.with_index_loss(true)));
    let losses = out.index_losses.into_iter().map(|(_, loss)| bits(loss));
    std::iter::once(bits(out.logits)).chain(losses).collect()
}

#[test]
fn a_pass_is_quantized_unless_it_is_told_not_to_be() {
    for mix in MIXES {
        let none = small::quantized(mix, QuantizationConfig::default());
        let unquantized = outcome(&none, |cx| cx);
        assert!(unquantized == outcome(&none, |cx| cx.with_quantization(true)), "{mix}: nothing to switch on");
        for quantization in FORMATS {
            let config = small::quantized(mix, quantization);
            let what = format!("{mix} {quantization:?}");
            let quantized = outcome(&config, |cx| cx);
            assert!(quantized == outcome(&config, |cx| cx.with_quantization(true)), "{what}");
            assert!(unquantized == outcome(&config, |cx| cx.with_quantization(false)), "{what}");
            let [main_kv, index, window] = formats(quantization);
            let modes: Vec<_> = config.layers.layers().iter().map(|layer| layer.mode).collect();
            let used = window.is_some()
                || main_kv.is_some() && modes.iter().any(|mode| mode.takes_ratio())
                || index.is_some() && modes.iter().any(|mode| mode.has_indexer());
            assert_eq!(quantized != unquantized, used, "{what}");
        }
    }
}

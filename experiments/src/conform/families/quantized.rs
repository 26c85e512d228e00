//! `c_model*` with quantizers: logits and every layer of a whole model that imitates its storage formats.

use burn::tensor::DType;
use csa2_model::attention::Context;
use csa2_model::config::{ModelConfig, QuantFormat, QuantizationConfig};

use crate::conform::Place;
use crate::conform::block::{Held, compare};
use crate::conform::case::Case;
use crate::conform::check::Check;
use crate::conform::error::CaseError;
use crate::conform::network::Network;
use crate::conform::tolerance::{MODEL, QUANTIZED};

/// The key of the JSON that says what is quantized.
pub const KEY: &str = "quantisation";

/// The key of the configuration that a part of the JSON's sentence sets.
type Key = fn(&mut QuantizationConfig) -> &mut QuantFormat;

/// What is quantized, as the JSON's sentence says it.
const PARTS: [(&str, QuantFormat, Key); 3] = [
    ("main FP4 E2M1/E4M3 g16", QuantFormat::Fp4, |config| &mut config.main_kv),
    ("indexer q,k FP4 E2M1/E8M0 g32", QuantFormat::Fp4, |config| &mut config.index),
    ("window FP8 E4M3/E8M0 g32", QuantFormat::Fp8, |config| &mut config.window),
];

/// Compares one case.
///
/// # Errors
/// When the case is not what the family holds, or the device fails.
pub fn run(check: &mut Check, place: &Place, plain: ModelConfig) -> Result<(), CaseError> {
    let case = check.case;
    let device = &place.device;
    let config = ModelConfig { quantization: quantization(case)?, ..plain };
    let network = Network::load(case, config, device)?;
    let cx = Context::new(&network.config, network.seq, DType::F32, device).with_trace(true);
    let out = network.model.forward(network.tokens(device), &cx);
    for name in ["logits", "f64.logits"] {
        if name == "logits" || case.has(name) {
            check.tensor(name, out.logits.clone(), QUANTIZED)?;
        }
    }
    for (layer, trace) in network.config.layers.layers().iter().zip(out.traces) {
        let prefix = format!("cap.layers.{}.", layer.index);
        // Rows of a selection may differ where its maker's scores leave that open.
        let maker = layer.address_from.map(|maker| format!("cap.layers.{maker}.attn."));
        let held = Held { prefix: &prefix, tolerance: QUANTIZED, whole: false, margins: maker.as_deref() };
        compare(check, &network.config, layer, trace, &held)?;
    }
    if case.has("logits_noquant") {
        let cx = Context::new(&network.config, network.seq, DType::F32, device).with_quantization(false);
        check.tensor("logits_noquant", network.model.forward(network.tokens(device), &cx).logits, MODEL)?;
    }
    Ok(())
}

/// The formats that the JSON's sentence names.
fn quantization(case: &Case) -> Result<QuantizationConfig, CaseError> {
    let text = case.text(KEY)?;
    let mut config = QuantizationConfig::default();
    let mut found = 0;
    for (words, format, part) in PARTS {
        if text.contains(words) {
            *part(&mut config) = format;
            found += 1;
        }
    }
    // A part that is said in other words would be left out in silence.
    let said = text.matches("FP4").count() + text.matches("FP8").count();
    if found == 0 || said != found {
        let known = PARTS.map(|(words, _, _)| words).join("; ");
        return Err(CaseError::key(KEY, format!("is {text:?}; what can be read there is: {known}")));
    }
    Ok(config)
}

//! Quantized runs: from the start, or from a step.

use super::*;
use crate::results::{MetricLine, Split};

const FORMATS: &str = "model.quantization = { main_kv = \"fp4\", index = \"fp4\", window = \"fp8\" }";

/// The tiny ablation with vectors wide enough, and for variants one model: unquantized, quantized, and from step 10 of 20.
fn three() -> String {
    let base = edited("head_dim = 8", "head_dim = 32").replace("index_dim = 8", "index_dim = 32");
    let base = &base[..base.find("[[variant]]").unwrap()];
    let variant =
        |name: &str, lines: &str| format!("[[variant]]\nname = \"{name}\"\nlayers = \"full reuse\"\n{lines}\n");
    let from = format!("{FORMATS}\ntrain.quantize_from = 10");
    base.to_string() + &variant("plain", "") + &variant("quantized", FORMATS) + &variant("from 10", &from)
}

fn lines(lab: &Lab, variant: &str) -> Vec<MetricLine> {
    crate::results::read_metrics(&metrics_path(&lab.dir(variant, 0))).unwrap().lines
}

/// What a line's value `quantized` says.
fn on(value: f64) -> bool {
    assert!([0.0_f64, 1.0].map(f64::to_bits).contains(&value.to_bits()), "{value}");
    value > 0.5
}

#[test]
fn quantization_begins_at_its_step() {
    let lab = Lab::new();
    lab.done(&three());
    let [plain, quantized, later] = ["plain", "quantized", "from 10"].map(|variant| lines(&lab, variant));
    assert!(plain.iter().all(|line| !line.values.contains_key("quantized")));
    assert!(quantized.iter().all(|line| on(line.values["quantized"])));
    assert_eq!((plain.len(), quantized.len(), later.len()), (25, 25, 25));
    for ((plain, quantized), mut later) in plain.into_iter().zip(quantized).zip(later) {
        // The step that leads to step 11 is the first that is quantized.
        let on = on(later.values.remove("quantized").unwrap());
        assert_eq!(on, later.step > 10, "{later:?}");
        assert_eq!(later == plain, !on, "step {}: {later:?} and {plain:?}", later.step);
        assert_ne!(quantized.values["loss"].to_bits(), plain.values["loss"].to_bits(), "step {}", plain.step);
    }
    let last = |variant: &str| lab.summary(variant, 0).final_values;
    assert!(last("quantized").keys().eq(last("plain").keys()), "no value of its own");
}

/// With the number of all steps, training is that of the unquantized model, and only the end is judged quantized.
#[test]
fn quantization_may_be_left_to_the_end() {
    let lab = Lab::new();
    lab.done(&three().replace("quantize_from = 10", "quantize_from = 20"));
    let (plain, later) = (lines(&lab, "plain"), lines(&lab, "from 10"));
    for (at, (plain, mut later)) in plain.into_iter().zip(later).enumerate() {
        let on = on(later.values.remove("quantized").unwrap());
        assert_eq!((on, later == plain), (at == 24, at != 24), "{later:?}");
    }
    let (summary, last) = (lab.summary("from 10", 0), lines(&lab, "from 10").remove(24));
    assert_eq!(summary.final_values["loss"].to_bits(), last.values["loss"].to_bits());
    let weights = |variant: &str| {
        let folder = lab.dir(variant, 0).join("checkpoint");
        fs::read(folder.join(Store::new(&lab.dir(variant, 0)).state().unwrap().unwrap().model)).unwrap()
    };
    assert!(weights("plain") == weights("from 10"));
    assert!(weights("plain") != weights("quantized"));
}

/// 600 steps, quantized from step 100: stopped before and behind it.
#[test]
fn a_stopped_run_goes_on_quantized_where_it_would_have_been() {
    let text = three()
        .replace("2_240", "67_200")
        .replace("checkpoint_every = 5", "checkpoint_every = 50")
        .replace("quantize_from = 10", "quantize_from = 100");
    let text = text[..text.find("[[variant]]").unwrap()].to_string()
        + &text[text.find("[[variant]]\nname = \"from 10\"").unwrap()..];
    let (whole, parts) = (Lab::new(), Lab::new());
    whole.done(&text);
    for (lines, steps) in [(40, 1..100), (200, 101..600)] {
        parts.interrupted_after(&text, "from 10", lines);
        let state = Store::new(&parts.dir("from 10", 0)).state().unwrap().unwrap();
        assert!(steps.contains(&state.step), "stopped at step {}", state.step);
    }
    parts.done(&text);
    assert!(parts.metrics("from 10", 0) == whole.metrics("from 10", 0));
    assert_eq!(parts.summary("from 10", 0).final_values, whole.summary("from 10", 0).final_values);
}

/// Guessing among the four values costs ln 4, and is right in a quarter of the cases.
#[test]
fn a_quantized_model_learns() {
    let lab = Lab::new();
    let text = three().replace("2_240", "44_800").replace("quantize_from = 10", "quantize_from = 300");
    lab.done(&text);
    for variant in ["quantized", "from 10"] {
        let measured = lines(&lab, variant);
        let last = &measured[measured.len() - 1];
        assert_eq!((last.step, last.split, on(last.values["quantized"])), (400, Split::Validation, true));
        assert!(measured[0].values["loss"] > 2.0, "{:?}", measured[0]);
        assert!(last.values["loss"] < 4.0_f64.ln() - 0.2 && last.values["accuracy"] > 0.35, "{last:?}");
    }
}

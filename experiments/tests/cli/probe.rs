//! `csa2 probe` and `csa2 figure`.

use std::fs;

use serde_json::Value;

use crate::common::{Lab, TINY, edited};

/// One run of `full reuse*2` and one of `full*3`, of the same shapes.
fn lab() -> Lab {
    let mix = edited("layers = \"swa*2\"", "layers = \"full*3\"")
        .replace("layers = \"full reuse\"", "layers = \"full reuse*2\"");
    let lab = Lab::with(&mix);
    lab.ablate().fine();
    lab
}

const RUN: &str = "out/shared/seed-0";
const FULL: &str = "out/windows/seed-0";

fn layer(told: &Value, number: u64) -> &Value {
    told["layers"].as_array().unwrap().iter().find(|layer| layer["layer"] == number).unwrap()
}

fn mean(layer: &Value, head: Option<usize>, name: &str) -> f64 {
    let of = head.map_or(layer, |head| &layer["heads"][head]);
    of["measures"][name]["mean"].as_f64().unwrap_or_else(|| panic!("{name}: {of}"))
}

#[test]
fn every_layer_and_head_is_measured() {
    let lab = lab();
    let told = lab.csa2(&["probe", RUN, "--sequences", "8", "--queries", "3", "--json"]).fine().json();
    assert_eq!(told["layers"].as_array().unwrap().len(), 3);
    for number in 0..3 {
        let layer = layer(&told, number);
        // A window of 4, K 2 and the sink.
        assert!((mean(layer, None, "entries") - 7.0).abs() < 1e-12, "{layer}");
        assert!(mean(layer, None, "affine_rank") <= 6.0);
        for head in 0..2 {
            let parts =
                ["mass_window", "mass_selected", "mass_sink", "mass_missed"].map(|name| mean(layer, Some(head), name));
            assert!(
                (parts.iter().sum::<f64>() - 1.0).abs() < 1e-9 && parts.iter().all(|part| *part >= 0.0),
                "{parts:?}"
            );
            // Mathematics in 64 bits and the network's operator in 32 look at the same numbers.
            assert!(mean(layer, Some(head), "operator_difference") < 1e-5);
            // Rotated back the derivative is symmetric without a negative eigenvalue; with unrotated values it would not be.
            let of = |name: &str| mean(layer, Some(head), name);
            assert!(of("asymmetry") < 1e-12 && of("smallest_eigenvalue") > -1e-12, "{layer}");
            assert!(of("asymmetry_unrotated") > 1e-3, "{layer}");
            // No more entries than there are, none of them below the smallest.
            assert!((1.0..=7.0).contains(&of("effective_entries")) && of("entropy") <= 7.0_f64.ln(), "{layer}");
            assert!(of("smallest_weight_log10") <= -(7.0_f64.log10()), "{layer}");
            let spectrum: Vec<f64> =
                layer["heads"][head]["spectrum"].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
            assert!(
                (spectrum.iter().sum::<f64>() - 1.0).abs() < 1e-9 && spectrum.is_sorted_by(|a, b| a >= b),
                "{spectrum:?}"
            );
        }
    }
    let pairs: Vec<(u64, u64)> = told["diversity"]
        .as_array()
        .unwrap()
        .iter()
        .map(|pair| (pair["first"].as_u64().unwrap(), pair["second"].as_u64().unwrap()))
        .collect();
    assert_eq!(pairs, [(0, 1), (0, 2), (1, 2)]);
    assert_eq!(told["undecided"], 0);
    // The files, and the same again.
    let folder = lab.path().join(RUN).join("probe");
    for name in ["probe.json", "probe.csv", "report.html"] {
        assert!(folder.join(name).exists(), "{name}");
    }
    let csv = fs::read_to_string(folder.join("probe.csv")).unwrap();
    assert!(csv.lines().all(|line| line.split(',').count() == 10) && csv.contains("0,,with 1,output_cosine,"), "{csv}");
    let again = lab.csa2(&["probe", RUN, "--sequences", "8", "--queries", "3", "--json"]).fine().json();
    assert_eq!(again, told);
    let other = lab.csa2(&["probe", RUN, "--sequences", "8", "--queries", "3", "--seed", "1", "--json"]).fine().json();
    assert_ne!(other["layers"], told["layers"]);
    let page = fs::read_to_string(folder.join("report.html")).unwrap();
    assert!(page.contains("What does a layer miss?") && !page.contains("<script"));
}

#[test]
fn a_twin_makes_anew_what_the_run_reuses() {
    let lab = lab();
    let told = lab.csa2(&["probe", RUN, "--twin", FULL, "--json"]).fine().json();
    let has = |number| layer(&told, number)["has_twin"].as_bool().unwrap();
    // Where both are full the two are compared, too: as far apart are layers that lack nothing.
    assert_eq!([has(0), has(1), has(2)], [true, true, true]);
    assert!(mean(layer(&told, 0), Some(0), "hull_distance") > 0.0);
    let accuracy = told["accuracy"].as_f64().unwrap();
    assert!((0.0..=1.0).contains(&accuracy), "{accuracy}");
    let page = fs::read_to_string(lab.path().join(RUN).join("probe/report.html")).unwrap();
    assert!(page.contains("The yardstick is what a full layer of this run has in reach"), "{page}");
    for number in [1, 2] {
        let layer = layer(&told, number);
        let cosine = mean(layer, None, "tilt_cosine_mean");
        assert!((0.0..=1.0 + 1e-9).contains(&cosine), "{cosine}");
        assert!(mean(layer, Some(0), "repair_kl") >= 0.0);
        assert!(mean(layer, Some(0), "output_difference") > 0.0);
    }
    // The run as its own twin: nothing of it is full where it reuses.
    let own = lab.csa2(&["probe", RUN, "--twin", RUN]).refused();
    assert!(own.contains("no layer is `full` with the same ratio"), "{own}");
    // A layer without a twin is compared with nothing: an address of its own would be another kind of twin under the same names.
    let other = edited("layers = \"swa*2\"", "layers = \"swa full full\"")
        .replace("layers = \"full reuse\"", "layers = \"full reuse*2\"");
    lab.write("other.toml", &other);
    lab.csa2(&["ablate", "other.toml", "--out", "other"]).fine();
    let told = lab.csa2(&["probe", RUN, "--twin", "other/windows/seed-0", "--json"]).fine().json();
    assert_eq!(layer(&told, 0)["has_twin"], false);
    let measures = &layer(&told, 0)["heads"][0]["measures"];
    assert!(measures.get("hull_distance").is_none() && measures.get("operator_difference").is_some(), "{measures}");
    assert!(mean(layer(&told, 1), Some(0), "hull_distance") > 0.0);
}

/// A run whose values are not rotated: the derivative is as skew as the probe says that it would be.
#[test]
fn unrotated_values_are_measured_as_they_are() {
    let lab = Lab::with(&edited("window = 4", "values = \"unrotated\"\nwindow = 4"));
    lab.ablate().fine();
    let told = lab.csa2(&["probe", RUN, "--json"]).fine().json();
    assert_eq!(told["values"], "unrotated");
    for layer in told["layers"].as_array().unwrap() {
        for head in layer["heads"].as_array().unwrap() {
            let mean = |name: &str| head["measures"][name]["mean"].as_f64().unwrap();
            assert!(mean("operator_difference") < 1e-5, "{head}");
            assert!(mean("asymmetry") > 1e-3, "{head}");
            assert!((mean("asymmetry") - mean("asymmetry_unrotated")).abs() < 1e-12, "{head}");
        }
    }
    let page = fs::read_to_string(lab.path().join(RUN).join("probe/report.html")).unwrap();
    assert!(page.contains("Not here, where values are not rotated"));
    let message = lab.csa2(&["generate", RUN, "--tokens", "1", "--max-new", "1"]).refused();
    assert!(message.contains("only models with rotated values are decoded"), "{message}");
}

#[test]
fn a_probe_of_another_run_is_not_replaced() {
    let lab = lab();
    let probe = |run: &str| lab.csa2(&["probe", run, "--sequences", "2", "--out", "found"]);
    probe(RUN).fine();
    probe(RUN).fine();
    let refused = probe(FULL).refused();
    assert!(refused.contains("is the probe of another run"), "{refused}");
}

#[test]
fn what_cannot_be_is_refused() {
    let lab = Lab::with(TINY);
    lab.ablate().fine();
    let wider = TINY.replace("heads = 2", "heads = 4");
    lab.write("wide.toml", &wider);
    lab.csa2(&["ablate", "wide.toml", "--out", "wide"]).fine();
    lab.write("empty/config.toml", fs::read(lab.path().join(RUN).join("config.toml")).unwrap());
    for (arguments, expected) in [
        (&["probe", "nobody"][..], "nobody"),
        (&["probe", "empty"], "empty"),
        (&["probe", FULL], "no layer of the mix `swa*2` reads selected entries"),
        (&["probe", RUN, "--twin", "nobody"], "--twin: "),
        (&["probe", RUN, "--twin", "wide/shared/seed-0"], "its `heads` is 4, that of the probed run 2"),
        (&["probe", RUN, "--sequences", "1000"], "--sequences 1000: the run's evaluation set has 16"),
        (&["probe", RUN, "--out", "wide"], "is not empty"),
        (&["figure", "square"], "no picture is called \"square\"; there are triangle"),
    ] {
        let message = lab.csa2(arguments).refused();
        assert!(message.contains(expected), "{expected}: {message}");
    }
    let folder = lab.run_folder("shared").join("checkpoint");
    let weights = fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
    let weights = weights.into_iter().find(|path| path.extension().is_some_and(|e| e == "safetensors")).unwrap();
    let mut bytes = fs::read(&weights).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(&weights, bytes).unwrap();
    let message = lab.csa2(&["probe", RUN]).refused();
    assert!(message.contains(RUN) && message.contains("is NaN; all must be finite"), "{message}");
    assert!(!lab.path().join(RUN).join("probe").exists(), "nothing is begun");
}

#[test]
fn pictures_are_drawn_where_they_are_wanted() {
    let lab = Lab::new();
    let told = lab.csa2(&["figure", "triangle", "interior", "--out", "pictures"]).fine().out;
    assert_eq!(told.lines().count(), 2, "{told}");
    assert!(fs::read_to_string(lab.path().join("pictures/triangle.svg")).unwrap().starts_with("<svg "));
    assert!(!lab.path().join("pictures/tilt.svg").exists());
}

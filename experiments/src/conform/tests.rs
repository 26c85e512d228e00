//! Every family on the project's cases, and on copies of them that are wrong.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use safetensors::Dtype;
use serde_json::{Value, json};

use super::family::FAMILIES;
use super::testing::{Copy, Files, Stored, cpu, goldens};
use super::{Compared, Outcome, folder, run};

/// One case of every family and role, with the cases that it needs beside it.
const CASES: [(&str, &[&str]); 19] = [
    ("a_sparse_attn_ragged", &[]),
    ("b_attn_full1_candidate_source", &[]),
    ("b_attn_reindex", &[]),
    ("b_attn_reuse_after_full2", &[]),
    ("b_attn_grad_full2", &[]),
    ("b_block_full1_candidate_source", &[]),
    ("c_model10_s64", &[]),
    ("c_model5_quant", &[]),
    ("c_trace_s64", &["c_model10_s64"]),
    ("d_candidate_blocks", &[]),
    ("e_quant", &[]),
    ("f_compressor", &[]),
    ("g_grad_w_full2_full1_reindex", &[]),
    ("h_components", &[]),
    ("k_angles", &[]),
    ("k_family_0", &[]),
    ("k_hull_3", &[]),
    ("k_readout_1", &[]),
    ("k_singled_out", &[]),
];

/// Whether the case is one of geometry, whose numbers are f64 and whose JSON holds results, too.
fn of_geometry(name: &str) -> bool {
    name.starts_with("k_")
}

#[test]
fn the_projects_cases_pass_with_every_tensor_compared() {
    let cases = run(&goldens(), &[], &cpu(), |_, _| ()).unwrap();
    for case in &cases {
        assert_eq!(
            (case.outcome(), &case.unread[..], &case.not_run[..]),
            (Outcome::Passed, &[][..], &[][..]),
            "{case:?}"
        );
    }
    for family in FAMILIES {
        let of_family =
            cases.iter().filter(|case| super::Family::of(&case.name).is_some_and(|f| f.prefix == family.prefix));
        let compared: usize = of_family.flat_map(|case| &case.comparisons).map(|comparison| comparison.compared).sum();
        assert!(compared > 1000, "{}: {compared}", family.prefix);
    }
}

/// Whether a tensor is something that the network is given: a number there need not matter to what it makes.
fn is_input(name: &str) -> bool {
    let given = ["weights.", "shared.", "gate.bias"].iter().any(|start| name.starts_with(start));
    given || [".scores", ".x", ".bf16_x", "pow2_scale.amax"].iter().any(|end| name.ends_with(end))
}

/// Changes the number in the middle of a tensor by `by`, relatively where it is above 1; a whole number by one.
fn change(stored: &mut Stored, by: f64) {
    let size = stored.dtype.bitsize() / 8;
    let at = stored.bytes.len() / size / 2 * size;
    let bytes = &mut stored.bytes[at..at + size];
    match stored.dtype {
        Dtype::F32 => {
            let old = f32::from_le_bytes(bytes.try_into().unwrap());
            let new = if old.is_finite() { old + by as f32 * old.abs().max(1.0) } else { 0.5 };
            bytes.copy_from_slice(&new.to_le_bytes());
        }
        Dtype::F64 => {
            let old = f64::from_le_bytes(bytes.try_into().unwrap());
            bytes.copy_from_slice(&(old + by * old.abs().max(1.0)).to_le_bytes());
        }
        Dtype::I32 => {
            let old = i32::from_le_bytes(bytes.try_into().unwrap());
            bytes.copy_from_slice(&(if old > 0 { old - 1 } else { old + 1 }).to_le_bytes());
        }
        Dtype::U8 => bytes[0] ^= 1,
        other => panic!("{other:?}"),
    }
}

/// Whether a comparison failed whose name begins with `tensor`, or an error names it.
fn blames(compared: &Compared, tensor: &str) -> bool {
    let mut failed = compared.comparisons.iter().filter(|comparison| !comparison.passed());
    let named = compared.error.as_ref().is_some_and(|error| error.contains(tensor));
    compared.outcome() == Outcome::Failed && (named || failed.any(|comparison| comparison.name.starts_with(tensor)))
}

#[test]
fn one_number_off_is_noticed_in_every_tensor() {
    for (name, others) in CASES {
        let copy = Copy::of(name, others);
        let outputs: Vec<&String> = copy.files.tensors.keys().filter(|tensor| !is_input(tensor)).collect();
        assert!(outputs.len() > 1, "{name}");
        assert!(!of_geometry(name) || outputs.len() == copy.files.tensors.len(), "{name}");
        for tensor in outputs {
            // Within every tolerance, and then beyond: 1e-3 is the widest.
            let changed = copy.changed(|files| change(files.tensors.get_mut(tensor).unwrap(), 0.005));
            // What a component or a layer is given is not blamed itself.
            let given = ["q", "kv", "attn_sink", "topk_idxs", "grad_o", "input", "grad_output", "input_ids"];
            let given = given.contains(&tensor.as_str())
                || [".positions", ".grad_latent", ".decode_x", ".route", ".mixes", ".scale", ".base", "rmsnorm.weight"]
                    .iter()
                    .chain(&["pre_mix_in", "streams_in", "cap.input", ".gpre", ".gpost", ".gcomb", "gate.weight"])
                    .any(|end| tensor.ends_with(end))
                || tensor.starts_with("expert.weights.")
                || tensor.contains(".weights.");
            let asked = ["entries", "points", "prior", "target", "a", "b", "line", "triangle", "q", "dq"];
            let given = if of_geometry(name) { asked.contains(&tensor.as_str()) } else { given };
            assert_eq!(changed.outcome(), Outcome::Failed, "{name}: {tensor}");
            assert!(given || blames(&changed, tensor), "{name}: {tensor}: {:?}", changed.error);
        }
    }
}

/// Numbers of a JSON value, each in its place.
fn numbers(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| numbers(value, &format!("{path}/{key}"), found)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(at, value)| numbers(value, &format!("{path}/{at}"), found));
        }
        Value::Number(_) => found.push(path.to_owned()),
        _ => {}
    }
}

#[test]
fn one_number_off_in_the_json_of_a_case_of_geometry_is_noticed() {
    let mut changed = 0;
    for case in folder::cases(&goldens(), &["k_".into()]).unwrap() {
        let copy = Copy::of(&case, &[]);
        let mut paths = Vec::new();
        numbers(&copy.files.about, "", &mut paths);
        for path in paths {
            let compared = copy.changed(|files| {
                let value = files.about.pointer_mut(&path).unwrap();
                *value = match value.as_i64() {
                    Some(whole) => json!(whole + 1),
                    None => json!(value.as_f64().unwrap() + 0.005),
                };
            });
            let key = path.split('/').nth(1).unwrap();
            assert_eq!(compared.outcome(), Outcome::Failed, "{case}: {path}");
            assert!(["scale", "sink"].contains(&key) || blames(&compared, key), "{case}: {path}: {compared:?}");
            changed += 1;
        }
    }
    // Ranks, scales and sinks of 5 cases, a rank, 7 labels and 2 tolerances of 5, 5 divergences, 8 largest probabilities.
    assert_eq!(changed, 5 * 3 + 2 + 5 * 10 + 5 + 8);
}

#[test]
fn cases_of_geometry_are_told_apart_by_their_kind() {
    let copy = Copy::of("k_angles", &[]);
    let error = |kind: Value| copy.changed(|files| files.about["kind"] = kind).error.unwrap();
    assert_eq!(
        error(json!("angle")),
        "key `kind` is \"angle\"; there are: readout, hull, family, angles, max_probability"
    );
    assert_eq!(error(json!("hull")), "key `tolerance_distance` is missing in k_angles.json");
    assert_eq!(error(Value::Null), "key `kind` is missing in k_angles.json");
    let sink = Copy::of("k_readout_0", &[]).changed(|files| files.about["sink"] = json!(0.0));
    assert_eq!(sink.outcome(), Outcome::Failed);
    let loose = Copy::of("k_hull_0", &[]).changed(|files| files.about["tolerance_reach"] = json!(1e-7));
    assert_eq!(loose.error.unwrap(), "key `tolerance_reach` is 0.0000001; it must be above 0 and at most 0.00000001");
}

#[test]
fn nothing_compared_is_no_success() {
    let report = |not_run: bool, comparisons: usize| {
        let mut cases = run(&goldens(), &["k_angles".into()], &cpu(), |_, _| ()).unwrap();
        cases[0].comparisons.truncate(comparisons);
        if not_run {
            cases[0].not_run.push(super::NotRun { part: "everything".into(), reason: "of a reason".into() });
        }
        super::Report { folder: goldens(), backend: super::Backend::Flex, hardware: String::new(), cases }
    };
    assert!(report(false, 1).passed() && report(true, 1).passed());
    assert_eq!((report(true, 0).passed(), report(true, 0).count(Outcome::NotRun)), (false, 1));
    assert_eq!((report(false, 0).passed(), report(false, 0).count(Outcome::Failed)), (false, 1));
}

#[test]
fn what_the_network_is_given_matters() {
    for (name, tensor) in [
        ("a_sparse_attn_ragged", "kv"),
        ("b_attn_reindex", "weights.indexer.wq_b.weight"),
        ("b_attn_reindex", "shared.index_k"),
        ("b_attn_grad_full2", "weights.compressor.wgate.weight"),
        ("b_block_full1_candidate_source", "weights.hc_ffn_scale"),
        ("b_block_full1_candidate_source", "weights.ffn.gate.weight"),
        ("c_model10_s64", "weights.layers.7.attn.wq_b.weight"),
        ("c_model5_quant", "weights.layers.1.attn.indexer.wk.weight"),
        ("d_candidate_blocks", "row009.scores"),
        ("e_quant", "fp8_e8m0_g32.x"),
        ("f_compressor", "r4.len13.x"),
        ("g_grad_w_full2_full1_reindex", "weights.norm.weight"),
        ("h_components", "gate.bias"),
        ("k_angles", "b"),
        ("k_family_0", "prior"),
        ("k_readout_1", "dq"),
    ] {
        let copy = Copy::of(name, &[]);
        let changed = copy.changed(|files| change(files.tensors.get_mut(tensor).unwrap(), 1000.0));
        assert_eq!((changed.outcome(), &changed.error), (Outcome::Failed, &None), "{name}: {tensor}");
    }
}

/// A tensor of other type or shape.
fn misshapen(stored: &Stored) -> Vec<Stored> {
    let like = |dims: Vec<usize>| {
        let count = dims.iter().product::<usize>() * stored.dtype.bitsize() / 8;
        let bytes = stored.bytes.iter().cycle().take(count).copied().collect();
        Stored { dtype: stored.dtype, dims, bytes }
    };
    let other = match stored.dtype {
        Dtype::F32 => Dtype::I32,
        Dtype::F64 => Dtype::I64,
        Dtype::I32 => Dtype::F32,
        _ => Dtype::I8,
    };
    let mut forms = vec![Stored { dtype: other, ..stored.clone() }, like([&stored.dims[..], &[1]].concat())];
    let mut reversed = stored.dims.clone();
    reversed.reverse();
    forms.push(like(reversed));
    for axis in 0..stored.dims.len() {
        for size in [stored.dims[axis] - 1, stored.dims[axis] + 1, 0] {
            let mut dims = stored.dims.clone();
            dims[axis] = size;
            forms.push(like(dims));
        }
    }
    forms.retain(|form| form.dtype != stored.dtype || form.dims != stored.dims);
    forms
}

/// A tensor of numbers that cannot be, or seldom are.
fn refilled(stored: &Stored) -> Vec<Stored> {
    let filled = |value: &[u8]| {
        let bytes = value.iter().cycle().take(stored.bytes.len()).copied().collect();
        Stored { bytes, ..stored.clone() }
    };
    match stored.dtype {
        Dtype::F32 => [f32::NAN, f32::INFINITY, -1e38, 0.0, 1e-44].map(|value| filled(&value.to_le_bytes())).to_vec(),
        Dtype::F64 => {
            [f64::NAN, f64::INFINITY, f64::MAX, -1e300, 0.0, 1e-310].map(|value| filled(&value.to_le_bytes())).to_vec()
        }
        Dtype::I32 => [i32::MAX, i32::MIN, -2, -1, 0, 3, 1000].map(|value| filled(&value.to_le_bytes())).to_vec(),
        Dtype::U8 => [0, 1, 2, 255].map(|value| filled(&[value])).to_vec(),
        _ => Vec::new(),
    }
}

/// A changed copy is compared without a panic.
fn calmly(copy: &Copy, what: &str, change: impl FnOnce(&mut Files)) -> Compared {
    let compared = catch_unwind(AssertUnwindSafe(|| copy.changed(change)));
    compared.unwrap_or_else(|_| panic!("{}: {what} makes the comparison panic", copy.name))
}

#[test]
fn tensors_that_do_not_belong_fail_without_a_panic() {
    for (name, others) in CASES {
        let mut copy = Copy::of(name, others);
        // With the list of tensors everything else would be refused by that alone.
        let listed = copy.files.about.as_object_mut().unwrap().remove("tensors");
        assert!(listed.is_some() || of_geometry(name));
        // Of many tensors some stand for all: each kind is there more than once.
        let step = copy.files.tensors.len().div_ceil(20);
        let some = copy.files.tensors.iter().enumerate().filter(|(at, (tensor, _))| {
            let one_of_many = ["layers.", "row", "r2.", "r4."].iter().any(|part| tensor.contains(part));
            !one_of_many || at % step == 0
        });
        // A sequence too short for an entry takes part in nothing but the count.
        let counted = |tensor: &str| {
            tensor.strip_suffix(".x").is_none_or(|start| copy.files.tensors.contains_key(&format!("{start}.latent")))
        };
        let some = some.filter(|(_, (tensor, _))| name != "f_compressor" || counted(tensor));
        for (_, (tensor, stored)) in some {
            for form in misshapen(stored) {
                // One entry more, which is the first one again, leaves a hull as it is.
                if name.starts_with("k_hull")
                    && tensor == "entries"
                    && form.dims == [stored.dims[0] + 1, stored.dims[1]]
                {
                    continue;
                }
                let what = format!("{tensor} as {:?} {:?}", form.dtype, form.dims);
                let compared = calmly(&copy, &what, |files| drop(files.tensors.insert(tensor.clone(), form)));
                assert_eq!(compared.outcome(), Outcome::Failed, "{name}: {what}");
            }
            // A whole model takes its time: the weights of layers are refilled where a block is.
            let long = ["c_", "g_"].iter().any(|start| name.starts_with(start)) && tensor.contains("layers.");
            for form in if long { Vec::new() } else { refilled(stored) } {
                calmly(&copy, tensor, |files| drop(files.tensors.insert(tensor.clone(), form)));
            }
            calmly(&copy, tensor, |files| drop(files.tensors.remove(tensor)));
        }
    }
}

/// All places of a JSON value that hold something else than objects.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| leaves(value, &format!("{path}/{key}"), found)),
        Value::Array(list) if list.iter().any(Value::is_object) => {
            list.iter().enumerate().take(2).for_each(|(at, value)| leaves(value, &format!("{path}/{at}"), found));
        }
        _ => found.push(path.to_owned()),
    }
}

#[test]
fn keys_of_any_value_are_met_without_a_panic() {
    let values =
        [json!(0), json!(-1), json!(3), json!(1_000_000), json!(u64::MAX), json!(1e300), json!("x"), json!([])];
    for (name, others) in CASES {
        let copy = Copy::of(name, others);
        let mut paths = Vec::new();
        leaves(&copy.files.about, "", &mut paths);
        let unused = ["/tensors", "/official_args", "/notes", "/agreement", "/decode_vs", "/f32_vs", "/hf_f32"];
        paths.retain(|path| !unused.iter().any(|start| path.starts_with(start)));
        // The model's configuration is read in one way, whatever the family: a layer, a block and a model stand for all.
        let configured = ["b_attn_full1_candidate_source", "b_block_full1_candidate_source", "c_model5_quant"];
        paths.retain(|path| configured.contains(&name) || !path.starts_with("/hf_text_config"));
        for path in paths {
            for value in values.iter().chain([&json!(null), &json!({}), &json!([1_000_000_000])]) {
                let what = format!("{path} = {value}");
                calmly(&copy, &what, |files| *files.about.pointer_mut(&path).unwrap() = value.clone());
            }
        }
    }
}

#[test]
fn a_file_that_is_not_the_listed_one_is_refused() {
    let copy = Copy::of("b_attn_window", &[]);
    let error = |change: &dyn Fn(&mut Files)| copy.changed(change).error.unwrap();
    assert_eq!(error(&|files| drop(files.tensors.remove("cap.o"))), "cap.o: missing; the JSON lists it");
    let more = |files: &mut Files| drop(files.tensors.insert("cap.p".into(), files.tensors["cap.o"].clone()));
    assert_eq!(error(&more), "key `tensors` does not list cap.p, which is stored");
    assert_eq!(
        error(&|files| files.about["case"] = json!("c")),
        "key `case` is \"c\", but the file's name is that of a case \"b\""
    );
    assert_eq!(error(&|files| files.about["seq"] = json!(3)), "key `seq` is 3, but cap.input has 41 tokens");
    let error = error(&|files| files.about["role"] = json!("full3"));
    assert!(error.starts_with("key `role` is \"full3\", but the mix `swa full@2"), "{error}");
}

#[test]
fn sizes_of_the_json_are_held_against_the_tensors_before_anything_is_built() {
    for name in ["b_attn_window", "b_block_window", "c_model10_s64"] {
        let copy = Copy::of(name, &[]);
        let sized =
            |key: &str| copy.changed(|files| files.about["hf_text_config"][key] = json!(1 << 24)).error.unwrap();
        let error = sized("num_attention_heads");
        assert!(error.starts_with("key `hf_text_config` ") && error.contains(" parameters, but "), "{error}");
        let error = sized("index_topk");
        assert!(error.contains("index_topk") || error.contains("topk = 16777216"), "{error}");
    }
}

#[test]
fn a_file_that_only_lends_its_weights_is_no_case() {
    let copy = Copy::of("c_model10_s96", &["c_model10_s64"]);
    let path = |name: &str| copy.folder.path().join(name);
    std::fs::rename(path("c_model10_s64.safetensors"), path("shared weights.safetensors")).unwrap();
    std::fs::remove_file(path("c_model10_s64.json")).unwrap();
    let compared = copy.changed(|files| files.about["weights_file"] = json!("shared weights.safetensors"));
    assert_eq!((compared.outcome(), &compared.error, &compared.unread[..]), (Outcome::Passed, &None, &[][..]));
    assert_eq!(folder::cases(copy.folder.path(), &[]).unwrap(), ["c_model10_s96"]);
    let outside = copy.changed(|files| files.about["weights_file"] = json!("../x.safetensors")).error.unwrap();
    assert!(outside.contains("it must name a file of the same folder"), "{outside}");
}

/// Selections may differ where the margin leaves them open, and nowhere else.
#[test]
fn a_selection_is_excused_by_its_margin_alone() {
    let copy = Copy::of("c_model5_quant", &[]);
    let (list, margin) = ("cap.layers.1.attn.topk_idxs", "cap.layers.1.attn.indexer.topk_margin");
    let dims = copy.files.tensors[list].dims.clone();
    // The last entry of the last query's selection, to one that it does not list.
    let swap = |files: &mut Files| {
        let bytes = &mut files.tensors.get_mut(list).unwrap().bytes;
        let row: BTreeSet<i32> =
            bytes.as_chunks().0.iter().rev().take(dims[2]).map(|bytes| i32::from_le_bytes(*bytes)).collect();
        let last = *row.last().unwrap();
        let other = (dims[1] as i32..last).rev().find(|entry| !row.contains(entry)).unwrap();
        let at = bytes.as_chunks::<4>().0.iter().rposition(|bytes| i32::from_le_bytes(*bytes) == last).unwrap();
        bytes[at * 4..at * 4 + 4].copy_from_slice(&other.to_le_bytes());
    };
    let blamed = copy.changed(swap);
    let of = |compared: &Compared| {
        compared.comparisons.iter().find(|one| one.name == format!("{list} (selected)")).cloned().unwrap()
    };
    assert_eq!((of(&blamed).differing, of(&blamed).excused), (1, 0));
    let excused = copy.changed(|files| {
        swap(files);
        let bytes = &mut files.tensors.get_mut(margin).unwrap().bytes;
        let end = bytes.len();
        bytes[end - 4..].copy_from_slice(&1e-4_f32.to_le_bytes());
    });
    assert_eq!((of(&excused).differing, of(&excused).excused), (0, 1));
}

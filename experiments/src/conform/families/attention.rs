//! `b_attn_*`: one attention layer of each role, with every intermediate value.

use burn::tensor::{DType, Device, Int, Tensor};
use csa2_model::attention::{Address, Attention, Content, Context, Shared};
use csa2_model::checkpoint::load;
use csa2_model::config::ModelConfig;
use csa2_model::mix::{Mode, PlannedLayer};
use csa2_model::ops::NO_ENTRY;

use crate::conform::Place;
use crate::conform::case::{Case, int_tensor};
use crate::conform::check::Check;
use crate::conform::error::CaseError;
use crate::conform::layer::{Held, Made, compare};
use crate::conform::sizes::{check_attention, check_rows};
use crate::conform::tolerance::LAYER;

/// Compares one case.
///
/// # Errors
/// When the case is not what the family holds, or the device fails.
pub fn run(check: &mut Check, place: &Place) -> Result<(), CaseError> {
    let case = check.case;
    let config = case.config()?;
    if !place.holds_model(check, &config) {
        return Ok(());
    }
    let device = &place.device;
    let layer = layer(case, &config)?;
    let attention = build(case, &config, &layer, device)?;
    let [batch, seq, _] = case.dims("cap.input")?;
    if case.find("seq").is_some() && case.size("seq")? != seq {
        return Err(CaseError::key("seq", format!("is {}, but cap.input has {seq} tokens", case.size("seq")?)));
    }
    check_rows(&config, batch, seq)?;
    let x = case.tensor("cap.input", [batch, seq, config.d_model], device, DType::F32)?;
    let mut shared = shared(case, &config, &layer, [batch, seq], device)?;
    let cx = Context::new(&config, seq, DType::F32, device).with_trace(true);
    let out = attention.forward(x, &mut shared, &cx);
    check.tensor("rope.cos", cx.tokens(layer.ratio).cos(), LAYER)?;
    check.tensor("rope.sin", cx.tokens(layer.ratio).sin(), LAYER)?;
    check.tensor("f64.output", out.output.clone(), LAYER)?;
    let trace = out.trace.expect("the context asks for traces");
    let made = Made { config: &config, layer: &layer, trace, output: out.output };
    compare(check, made, &Held { prefix: "cap.", tolerance: LAYER, whole: true, margins: None })
}

/// The attention layer with the case's weights.
///
/// # Errors
/// When the weights are not those of such a layer.
pub fn build(case: &Case, config: &ModelConfig, layer: &PlannedLayer, device: &Device) -> Result<Attention, CaseError> {
    let weights = case.weights("weights.")?;
    check_attention(config, layer, &weights)?;
    Ok(load(Attention::new(config, layer, device), weights, case.name())?)
}

/// The layer that the case is of: by its number, or by its role.
///
/// # Errors
/// When the model has no such layer.
pub fn layer(case: &Case, config: &ModelConfig) -> Result<PlannedLayer, CaseError> {
    let layers = config.layers.layers();
    let role = case.text("role")?;
    let fits = |layer: &PlannedLayer| has_role(layer, role, layers);
    let by_role = || layers.iter().find(|layer| fits(layer));
    let found = match case.find("layer_id") {
        None => by_role(),
        Some(_) => layers.get(case.size("layer_id")?).filter(|layer| fits(layer)),
    };
    found.cloned().ok_or_else(|| {
        let number = case.find("layer_id").map_or_else(String::new, |number| format!(" with number {number}"));
        CaseError::key("role", format!("is {role:?}, but the mix `{}` has no such layer{number}", config.layers))
    })
}

/// Roles as the cases name them: `window`, `full2`, `full1_candidate_source`, `reindex`, `reuse_after_` one of these. A role
/// that does not speak of candidates leaves open whether the layer builds a pool.
fn has_role(layer: &PlannedLayer, role: &str, layers: &[PlannedLayer]) -> bool {
    if let Some(source) = role.strip_prefix("reuse_after_") {
        let source_fits = |source_layer: usize| has_role(&layers[source_layer], source, layers);
        return layer.mode == Mode::Reuse && layer.address_from.is_some_and(source_fits);
    }
    match role {
        "window" => layer.mode == Mode::Swa,
        "reindex" => layer.mode == Mode::Reindex,
        _ => {
            let (ratio, pool) = match role.strip_suffix("_candidate_source") {
                Some(role) => (role, true),
                None => (role, false),
            };
            let full = ratio.strip_prefix("full").and_then(|ratio| ratio.parse().ok()) == Some(layer.ratio);
            layer.mode == Mode::Full && full && (layer.builds_pool || !pool)
        }
    }
}

/// What the layer receives from the layers below.
///
/// # Errors
/// When the case does not hold it, or holds what cannot be.
pub fn shared(
    case: &Case,
    config: &ModelConfig,
    layer: &PlannedLayer,
    [batch, seq]: [usize; 2],
    device: &Device,
) -> Result<Shared, CaseError> {
    let mut shared = Shared::default();
    if !matches!(layer.mode, Mode::Reindex | Mode::Reuse) {
        return Ok(shared);
    }
    let entries = seq / layer.ratio;
    let rows = |name: &str, channels: usize| match entries {
        // One row of padding, which no query sees.
        0 => Ok(Tensor::zeros([batch, 1, channels], (device, DType::F32))),
        _ => case.tensor(name, [batch, entries, channels], device, DType::F32),
    };
    let main = rows("shared.compress_kv", config.head_dim)?;
    let index_keys = match layer.mode {
        Mode::Reindex => Some(rows("shared.index_k", config.index_dim)?),
        _ => None,
    };
    shared.content = Some(Content { main, index_keys, entries });
    if layer.mode == Mode::Reuse {
        shared.address = Some(Address { topk: address(case, [batch, seq, entries], config.topk, device)? });
    }
    if let Some(pool) = config.pool.filter(|_| layer.pool_from.is_some()) {
        shared.pool = Some(blocks(case, [batch, seq, entries], pool.blocks, pool.block_size, device)?);
    }
    Ok(shared)
}

/// The source's Top-K, stored with the offset of the window before its entries, and no longer than there are entries.
fn address(
    case: &Case,
    [batch, seq, entries]: [usize; 3],
    topk: usize,
    device: &Device,
) -> Result<Tensor<3, Int>, CaseError> {
    if entries == 0 {
        return Ok(Tensor::full([batch, seq, topk], NO_ENTRY, device));
    }
    let none = i64::from(NO_ENTRY);
    let [_, _, width] = case.dims("shared.topk_idxs")?;
    if width > topk {
        let expected = format!("at most {topk} indices a query");
        return Err(CaseError::Shape { name: "shared.topk_idxs".into(), found: vec![batch, seq, width], expected });
    }
    let offset = seq as i64;
    let listed = case.ints("shared.topk_idxs", &[batch, seq, width], -1..offset + entries as i64)?;
    let row = |row: &[i64]| -> Vec<i64> {
        let chosen = row.iter().map(|&index| if index < offset { none } else { index - offset });
        chosen.chain(std::iter::repeat(none)).take(topk).collect()
    };
    Ok(int_tensor(listed.rows().flat_map(row).collect(), [batch, seq, topk], device))
}

/// The pool that the layer searches in, stored as a mask over entries.
fn blocks(
    case: &Case,
    [batch, seq, entries]: [usize; 3],
    most: usize,
    size: usize,
    device: &Device,
) -> Result<Tensor<3, Int>, CaseError> {
    if entries == 0 {
        return Ok(Tensor::full([batch, seq, most], NO_ENTRY, device));
    }
    let mask = case.mask("shared.candidates", &[batch, seq, entries])?;
    let mut values = Vec::with_capacity(batch * seq * most);
    for (row, mask) in mask.rows().enumerate() {
        let blocks = mask.chunks(size).enumerate();
        let kept: Vec<i64> =
            blocks.clone().filter(|(_, block)| block[0] == 1).map(|(number, _)| number as i64).collect();
        if kept.len() > most || blocks.clone().any(|(_, block)| block.iter().any(|inside| *inside != block[0])) {
            let file = format!("shared.candidates[{}, {}]", row / seq, row % seq);
            return Err(CaseError::Format { file, wrong: format!("must be at most {most} whole blocks of {size}") });
        }
        values.extend(kept.into_iter().chain(std::iter::repeat(i64::from(NO_ENTRY))).take(most));
    }
    Ok(int_tensor(values, [batch, seq, most], device))
}

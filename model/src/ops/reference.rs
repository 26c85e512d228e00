//! The operators in plain tensors: exact, slow, and on every backend. Tests hold every faster path against these.
//!
//! The functions here are written from the definitions (report 2.2, 2.3), not from the fast code: gather, mask,
//! softmax; a full sort where the fast path selects. Their gradients come from the backend's automatic differentiation.

use burn::tensor::{Bool, Int, Tensor, TensorData, activation};

use super::{AdamwStep, HYPER_EPS, NAN_ROW, NO_ENTRY, PoolUse, SINKHORN_ROUNDS, SelectSpec, Selection};

/// Rows of `latents` `[B, N, d]` named by `index` `[B, S, R]`: `[B, S, R, d]`, and where an entry is listed `[B, S, R]`.
/// Places without an entry hold row 0, to be masked.
fn gather(latents: Tensor<3>, index: Tensor<3, Int>) -> (Tensor<4>, Tensor<3, Bool>) {
    let [batch, seq, range] = index.dims();
    let [_, _, dim] = latents.dims();
    let listed = index.clone().greater_equal_elem(0);
    let rows = index.clamp_min(0).reshape([batch, seq * range, 1]).repeat_dim(2, dim);
    (latents.gather(1, rows).reshape([batch, seq, range, dim]), listed)
}

/// Positions of the windows of the last `queries` of `seq` tokens `[1, queries, min(width, seq)]`, [`NO_ENTRY`] before
/// the sequence starts.
pub fn window_positions(seq: usize, queries: usize, width: usize, device: &burn::tensor::Device) -> Tensor<3, Int> {
    let slots = width.min(seq).max(1);
    let mut positions = Vec::with_capacity(queries * slots);
    for t in seq - queries..seq {
        let first = (t + 1).saturating_sub(width);
        positions.extend((0..slots).map(|slot| if first + slot <= t { (first + slot) as i32 } else { NO_ENTRY }));
    }
    Tensor::from_data(TensorData::new(positions, [1, queries, slots]), device)
}

/// See [`readout`](fn@super::readout).
pub fn readout(
    q: Tensor<4>,
    window: Tensor<3>,
    main: Tensor<3>,
    sink: Tensor<1>,
    topk: Tensor<3, Int>,
    width: usize,
    scale: f64,
) -> (Tensor<4>, Tensor<3>) {
    let [batch, seq, heads, dim] = q.dims();
    let positions = window_positions(window.dims()[1], seq, width, &q.device()).repeat_dim(0, batch);
    let marked = topk.clone().lower_elem(NO_ENTRY).any_dim(2);
    let (near, near_listed) = gather(window, positions);
    let (far, far_listed) = gather(main, topk);
    let entries = Tensor::cat(vec![near, far], 2);
    let listed = Tensor::cat(vec![near_listed, far_listed], 2);
    let count = listed.dims()[2];
    let absent = listed.bool_not().unsqueeze_dim::<4>(2).repeat_dim(2, heads);
    // [B, S, H, n]: the entries of a query are shared by its heads.
    let logits = q.matmul(entries.clone().swap_dims(2, 3)).mul_scalar(scale);
    let logits = logits.mask_fill(absent.clone(), f32::NEG_INFINITY);
    let sink = sink.reshape([1, 1, heads, 1]).repeat_dim(0, batch).repeat_dim(1, seq);
    let max = Tensor::cat(vec![logits.clone(), sink.clone()], 3).max_dim(3).detach();
    let weights = (logits - max.clone().repeat_dim(3, count)).exp().mask_fill(absent, 0.0);
    let sum = weights.clone().sum_dim(3) + (sink - max.clone()).exp();
    let output = weights.matmul(entries) / sum.clone().repeat_dim(3, dim);
    let lse = (sum.log() + max).reshape([batch, seq, heads]).detach();
    let marked: Tensor<3, Bool> = marked.repeat_dim(2, heads);
    (
        output.mask_fill(marked.clone().unsqueeze_dim::<4>(3).repeat_dim(3, dim), f32::NAN),
        lse.mask_fill(marked, f32::NAN),
    )
}

/// See [`rotate`](fn@super::rotate).
pub fn rotate(x: Tensor<4>, cos: Tensor<2>, sin: Tensor<2>, inverse: bool) -> Tensor<4> {
    let [batch, seq, heads, dim] = x.dims();
    let pairs = cos.dims()[1];
    let sin = if inverse { sin.neg() } else { sin };
    let angle = |table: Tensor<2>| table.reshape([1, seq, 1, pairs]);
    let turned = x.clone().narrow(3, dim - 2 * pairs, 2 * pairs).reshape([batch, seq, heads, pairs, 2]);
    let real = turned.clone().narrow(4, 0, 1).reshape([batch, seq, heads, pairs]);
    let imaginary = turned.narrow(4, 1, 1).reshape([batch, seq, heads, pairs]);
    let (cos, sin) = (angle(cos), angle(sin));
    let new_real = real.clone() * cos.clone() - imaginary.clone() * sin.clone();
    let new_imaginary = real * sin + imaginary * cos;
    let turned = Tensor::stack::<5>(vec![new_real, new_imaginary], 4).reshape([batch, seq, heads, 2 * pairs]);
    if dim == 2 * pairs { turned } else { Tensor::cat(vec![x.narrow(3, 0, dim - 2 * pairs), turned], 3) }
}

/// Index scores `[B, S, N]` of every query and entry, visible or not: `sum_h weights[t, h] relu(q[t, h] . keys[j])`.
pub fn index_scores(q: Tensor<4>, keys: Tensor<3>, weights: Tensor<3>) -> Tensor<3> {
    let [batch, seq, heads, dim] = q.dims();
    let entries = keys.dims()[1];
    let products = q.reshape([batch, seq * heads, dim]).matmul(keys.swap_dims(1, 2));
    // Not the backend's relu, which may turn a NaN into 0.
    let off = products.clone().lower_equal_elem(0.0);
    let products = products.mask_fill(off, 0.0).reshape([batch, seq, heads, entries]);
    (products * weights.unsqueeze_dim::<4>(3)).sum_dim(2).reshape([batch, seq, entries])
}

/// The `count` best of `candidates`, ascending: best score first, of equal scores the lowest position first.
pub(super) fn best(scores: &[f64], mut candidates: Vec<usize>, count: usize) -> Vec<i32> {
    // Adding 0 makes -0 equal to 0.
    candidates.sort_by(|&a, &b| (scores[b] + 0.0).total_cmp(&(scores[a] + 0.0)).then(a.cmp(&b)));
    candidates.truncate(count);
    candidates.sort_unstable();
    let mut row: Vec<i32> = candidates.into_iter().map(|j| j as i32).collect();
    row.resize(count, NO_ENTRY);
    row
}

/// The pool of one query (report 4.2.1): from its score row, cut to the visible entries, the `blocks` best blocks of `size`
/// consecutive entries by their largest score; the block of the newest visible entry is always kept.
/// Ascending, filled up with [`NO_ENTRY`].
pub fn candidate_blocks(scores: &[f64], size: usize, blocks: usize) -> Vec<i32> {
    let block_scores: Vec<f64> =
        scores.chunks(size).map(|block| block.iter().copied().fold(f64::NEG_INFINITY, f64::max)).collect();
    let (Some(newest), Some(others)) = (block_scores.len().checked_sub(1), blocks.checked_sub(1)) else {
        return vec![NO_ENTRY; blocks];
    };
    // The newest is not a matter of scores: another block's may be infinite.
    let mut row = best(&block_scores, (0..newest).collect(), others);
    let place = row.iter().position(|&block| block == NO_ENTRY).unwrap_or(others);
    row.insert(place, newest as i32);
    row
}

/// See [`index_select`](fn@super::index_select). Scores are read back to the host and sorted there.
///
/// # Errors
/// When the scores cannot be read from the device.
pub fn index_select(
    q: Tensor<4>,
    keys: Tensor<3>,
    weights: Tensor<3>,
    pool: Option<Tensor<3, Int>>,
    spec: SelectSpec,
) -> Result<Selection, burn::tensor::DataError> {
    let device = q.device();
    let scores = index_scores(q, keys, weights);
    let [batch, seq, entries] = scores.dims();
    let scores: Vec<f64> = scores.into_data().convert::<f64>().try_to_vec()?;
    let pool_width = pool.as_ref().map_or(0, |pool| pool.dims()[2]);
    let pool: Vec<i32> = match pool {
        Some(pool) => pool.into_data().convert::<i32>().try_to_vec()?,
        None => Vec::new(),
    };
    let (mut topk, mut built) = (Vec::new(), Vec::new());
    for row in 0..batch * seq {
        let visible = spec.visible(row % seq);
        let scores = &scores[row * entries..row * entries + visible];
        let inside = |j: &usize| match spec.pool {
            PoolUse::Read { size } => pool[row * pool_width..(row + 1) * pool_width].contains(&((j / size) as i32)),
            PoolUse::None | PoolUse::Build { .. } => true,
        };
        let candidates: Vec<usize> = (0..visible).filter(inside).collect();
        let marked = candidates.iter().any(|&j| scores[j].is_nan());
        topk.extend(if marked { vec![NAN_ROW; spec.topk] } else { best(scores, candidates, spec.topk) });
        if let PoolUse::Build { blocks, size } = spec.pool {
            built.extend(if marked { vec![NO_ENTRY; blocks] } else { candidate_blocks(scores, size, blocks) });
        }
    }
    let rows = |values: Vec<i32>, width| Tensor::from_data(TensorData::new(values, [batch, seq, width]), &device);
    Ok(Selection {
        topk: rows(topk, spec.topk),
        pool: match spec.pool {
            PoolUse::Build { blocks, .. } => Some(rows(built, blocks)),
            PoolUse::None | PoolUse::Read { .. } => None,
        },
    })
}

/// See [`attention_mass`](fn@super::attention_mass).
pub fn attention_mass(q: Tensor<4>, main: Tensor<3>, lse: Tensor<3>, range: Tensor<3, Int>, scale: f64) -> Tensor<3> {
    let [batch, seq, width] = range.dims();
    let heads = q.dims()[2];
    let (entries, listed) = gather(main, range);
    let logits = q.matmul(entries.swap_dims(2, 3)).mul_scalar(scale);
    let absent = listed.bool_not().unsqueeze_dim::<4>(2).repeat_dim(2, heads);
    let mass = (logits - lse.unsqueeze_dim::<4>(3)).exp().mask_fill(absent, 0.0);
    mass.sum_dim(2).reshape([batch, seq, width]).detach()
}

/// See [`index_kl`](fn@super::index_kl).
pub fn index_kl(
    q: Tensor<4>,
    keys: Tensor<3>,
    weights: Tensor<3>,
    teacher: Tensor<3>,
    range: Tensor<3, Int>,
) -> Tensor<2> {
    let [batch, seq, _] = range.dims();
    let listed = range.clone().greater_equal_elem(0);
    let absent = listed.clone().bool_not();
    let scores = index_scores(q, keys, weights).gather(2, range.clamp_min(0));
    let scores = scores.mask_fill(absent.clone(), f32::NEG_INFINITY);
    let max = scores.clone().max_dim(2).clamp_min(f32::MIN).detach();
    let sum = (scores.clone() - max.clone()).exp().mask_fill(absent.clone(), 0.0).sum_dim(2);
    let teacher = teacher.detach().mask_fill(absent.clone(), 0.0);
    let mass = teacher.clone().sum_dim(2);
    let taught = mass.clone().greater_elem(0.0);
    let teacher = teacher / mass.mask_fill(taught.bool_not(), 1.0);
    let silent = teacher.clone().lower_equal_elem(0.0);
    let student =
        (scores - max - sum.mask_fill(listed.any_dim(2).bool_not(), 1.0).log()).mask_fill(silent.clone(), 0.0);
    let log_teacher = teacher.clone().mask_fill(silent, 1.0).log();
    (teacher * (log_teacher - student)).sum_dim(2).reshape([batch, seq])
}

/// See [`rms_norm`](fn@super::rms_norm).
pub fn rms_norm<const D: usize>(x: Tensor<D>, gamma: Tensor<1>, eps: f64) -> Tensor<D> {
    let rms = x.clone().square().mean_dim(D - 1).add_scalar(eps).sqrt();
    x / rms * gamma.unsqueeze()
}

/// See [`swiglu`](fn@super::swiglu).
pub fn swiglu<const D: usize>(gate: Tensor<D>, up: Tensor<D>) -> Tensor<D> {
    activation::silu(gate) * up
}

/// See [`sinkhorn`](fn@super::sinkhorn).
pub fn sinkhorn(logits: Tensor<3>) -> Tensor<3> {
    let divided = |x: Tensor<3>, axis| x.clone() / x.sum_dim(axis).add_scalar(HYPER_EPS);
    let start = activation::softmax(logits, 2).add_scalar(HYPER_EPS);
    (1..SINKHORN_ROUNDS).fold(divided(start, 1), |x, _| divided(divided(x, 2), 1))
}

/// See [`hyper_read`](fn@super::hyper_read).
pub fn hyper_read(streams: Tensor<3>, pre: Tensor<2>) -> Tensor<2> {
    let [rows, _, channels] = streams.dims();
    (streams * pre.unsqueeze_dim::<3>(2)).sum_dim(1).reshape([rows, channels])
}

/// See [`hyper_write`](fn@super::hyper_write).
pub fn hyper_write(streams: Tensor<3>, output: Tensor<2>, post: Tensor<2>, comb: Tensor<3>) -> Tensor<3> {
    let written = output.unsqueeze_dim::<3>(1) * post.unsqueeze_dim::<3>(2);
    written + comb.swap_dims(1, 2).matmul(streams)
}

/// See [`cross_entropy`](fn@super::cross_entropy).
pub fn cross_entropy(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    let [count, vocabulary] = logits.dims();
    let outside = targets.clone().lower_elem(0).bool_or(targets.clone().greater_equal_elem(vocabulary as i32));
    let places = targets.clamp(0, vocabulary as i32 - 1).reshape([count, 1]);
    let losses = activation::log_softmax(logits, 1).gather(1, places).reshape([count]).neg();
    losses.mask_fill(outside, f32::NAN)
}

/// See [`adamw`](fn@super::adamw).
pub fn adamw<const D: usize>(
    parameter: Tensor<D>,
    gradient: Tensor<D>,
    first: Tensor<D>,
    second: Tensor<D>,
    step: AdamwStep,
) -> (Tensor<D>, Tensor<D>, Tensor<D>) {
    let ([b1, b2], [c1, c2]) = (step.betas, step.corrections());
    let gradient = gradient.mul_scalar(step.factor);
    let first = first.mul_scalar(b1) + gradient.clone().mul_scalar(1.0 - b1);
    let second = second.mul_scalar(b2) + gradient.square().mul_scalar(1.0 - b2);
    let slope = first.clone().div_scalar(c1) / (second.clone().div_scalar(c2).sqrt().add_scalar(step.epsilon));
    let parameter = parameter.mul_scalar(1.0 - step.rate * step.weight_decay) - slope.mul_scalar(step.rate);
    (parameter, first, second)
}

//! The read-out on the CPU: one pass over a query's entries, forward and backward.

use burn::backend::Flex;
use rayon::prelude::*;

use super::{FlexTensor, Real, Rows, add_scaled, dot, indices, tensor, with_real};
use crate::ops::{NO_ENTRY, ReadoutBackend};

/// The inputs of one batch row.
struct Row<'a, T> {
    q: &'a [T],
    window: &'a [T],
    main: &'a [T],
    sink: &'a [T],
    topk: &'a [i32],
    dim: usize,
    width: usize,
    scale: T,
}

/// Where the entries of one query lie: positions of the window, then rows of the main latents.
#[derive(Default)]
struct Entries {
    window: std::ops::Range<usize>,
    main: Vec<usize>,
}

impl<T: Real> Row<'_, T> {
    /// Lists the entries of the query at `t`; false if the row is marked as not a number or names a row that is not there.
    fn entries(&self, t: usize, listed: &mut Entries) -> bool {
        let queries = self.queries();
        let k = self.topk.len() / queries;
        let position = self.window.len() / self.dim - queries + t;
        listed.window = (position + 1).saturating_sub(self.width)..position + 1;
        listed.main.clear();
        for &index in &self.topk[t * k..(t + 1) * k] {
            match usize::try_from(index) {
                Ok(j) if (j + 1) * self.dim <= self.main.len() => listed.main.push(j),
                Err(_) if index == NO_ENTRY => {}
                _ => return false,
            }
        }
        true
    }

    fn queries(&self) -> usize {
        self.q.len() / (self.dim * self.sink.len())
    }

    fn entry<'b>(&'b self, entries: &'b Entries) -> impl Iterator<Item = &'b [T]> {
        let d = self.dim;
        let window = entries.window.clone().map(move |i| &self.window[i * d..(i + 1) * d]);
        window.chain(entries.main.iter().map(move |&j| &self.main[j * d..(j + 1) * d]))
    }

    fn forward(&self, output: &mut [T], lse: &mut [T]) {
        let (d, heads) = (self.dim, self.sink.len());
        let mut entries = Entries::default();
        let mut weights = Vec::new();
        for t in 0..self.queries() {
            let complete = self.entries(t, &mut entries);
            for h in 0..heads {
                let at = t * heads + h;
                let out = &mut output[at * d..(at + 1) * d];
                if !complete {
                    out.fill(T::nan());
                    lse[at] = T::nan();
                    continue;
                }
                let q = &self.q[at * d..(at + 1) * d];
                weights.clear();
                weights.extend(self.entry(&entries).map(|c| self.scale * dot(q, c)));
                let max = weights.iter().copied().fold(self.sink[h], T::max);
                let mut sum = (self.sink[h] - max).exp();
                for w in &mut weights {
                    *w = (*w - max).exp();
                    sum += *w;
                }
                out.fill(T::zero());
                for (&w, c) in weights.iter().zip(self.entry(&entries)) {
                    add_scaled(out, w / sum, c);
                }
                lse[at] = max + sum.ln();
            }
        }
    }

    fn backward(&self, output: &[T], lse: &[T], grad: &[T], into: &mut RowGradients<T>) {
        let (d, heads) = (self.dim, self.sink.len());
        let mut entries = Entries::default();
        for t in 0..self.queries() {
            if !self.entries(t, &mut entries) {
                into.dq[t * heads * d..(t + 1) * heads * d].fill(T::nan());
                continue;
            }
            for h in 0..heads {
                let span = (t * heads + h) * d..(t * heads + h + 1) * d;
                let (q, g) = (&self.q[span.clone()], &grad[span.clone()]);
                let lse = lse[t * heads + h];
                // Every logit's gradient is p_j (g . c_j - g . o); the sink is an entry with vector 0.
                let mean = dot(g, &output[span.clone()]);
                into.dsink[h] += -(self.sink[h] - lse).exp() * mean;
                let dq = &mut into.dq[span];
                let mut step = |c: &[T], dc: &mut [T]| {
                    let p = (self.scale * dot(q, c) - lse).exp();
                    let dlogit = self.scale * p * (dot(g, c) - mean);
                    add_scaled(dq, dlogit, c);
                    add_scaled(dc, p, g);
                    add_scaled(dc, dlogit, q);
                };
                for i in entries.window.clone() {
                    let at = i * d..(i + 1) * d;
                    step(&self.window[at.clone()], &mut into.dwindow[at]);
                }
                for &j in &entries.main {
                    let at = j * d..(j + 1) * d;
                    step(&self.main[at.clone()], &mut into.dmain[at]);
                }
            }
        }
    }
}

/// The gradients of one batch row.
struct RowGradients<'a, T> {
    dq: &'a mut [T],
    dwindow: &'a mut [T],
    dmain: &'a mut [T],
    dsink: &'a mut [T],
}

struct Inputs {
    q: Rows,
    window: Rows,
    main: Rows,
    sink: Rows,
    topk: Vec<i32>,
    width: usize,
    scale: f64,
}

impl Inputs {
    fn row<T: Real>(&self, b: usize) -> Row<'_, T> {
        let [batch, seq, heads, dim] = self.q.dims();
        let [_, rows, _] = self.window.dims();
        let [_, entries, _] = self.main.dims();
        let topk = self.topk.len() / batch;
        Row {
            q: &self.q.values()[b * seq * heads * dim..(b + 1) * seq * heads * dim],
            window: &self.window.values()[b * rows * dim..(b + 1) * rows * dim],
            main: &self.main.values()[b * entries * dim..(b + 1) * entries * dim],
            sink: self.sink.values(),
            topk: &self.topk[b * topk..(b + 1) * topk],
            dim,
            width: self.width,
            scale: T::of(self.scale),
        }
    }
}

fn forward<T: Real>(inputs: &Inputs) -> (FlexTensor, FlexTensor) {
    let [batch, seq, heads, dim] = inputs.q.dims();
    let mut output = vec![T::zero(); batch * seq * heads * dim];
    let mut lse = vec![T::zero(); batch * seq * heads];
    output
        .par_chunks_mut(seq * heads * dim)
        .zip(lse.par_chunks_mut(seq * heads))
        .enumerate()
        .for_each(|(b, (output, lse))| inputs.row::<T>(b).forward(output, lse));
    (tensor(output, [batch, seq, heads, dim]), tensor(lse, [batch, seq, heads]))
}

fn backward<T: Real>(
    inputs: &Inputs,
    output: &Rows,
    lse: &Rows,
    grad: &Rows,
) -> (FlexTensor, FlexTensor, FlexTensor, FlexTensor) {
    let [batch, seq, heads, dim] = inputs.q.dims();
    let [_, entries, _] = inputs.main.dims();
    let [_, rows, _] = inputs.window.dims();
    let (row, head_rows) = (seq * heads * dim, seq * heads);
    let mut dq = vec![T::zero(); batch * row];
    let mut dwindow = vec![T::zero(); batch * rows * dim];
    let mut dmain = vec![T::zero(); batch * entries * dim];
    let mut dsinks = vec![T::zero(); batch * heads];
    let (output, lse, grad) = (output.values::<T>(), lse.values::<T>(), grad.values::<T>());
    dq.par_chunks_mut(row)
        .zip(dwindow.par_chunks_mut(rows * dim))
        .zip(dmain.par_chunks_mut(entries * dim))
        .zip(dsinks.par_chunks_mut(heads))
        .enumerate()
        .for_each(|(b, (((dq, dwindow), dmain), dsink))| {
            let mut into = RowGradients { dq, dwindow, dmain, dsink };
            inputs.row::<T>(b).backward(
                &output[b * row..(b + 1) * row],
                &lse[b * head_rows..(b + 1) * head_rows],
                &grad[b * row..(b + 1) * row],
                &mut into,
            );
        });
    let mut dsink = vec![T::zero(); heads];
    for part in dsinks.chunks_exact(heads) {
        add_scaled(&mut dsink, T::one(), part);
    }
    (
        tensor(dq, [batch, seq, heads, dim]),
        tensor(dwindow, [batch, rows, dim]),
        tensor(dmain, [batch, entries, dim]),
        tensor(dsink, [heads]),
    )
}

impl ReadoutBackend for Flex {
    fn readout(
        q: FlexTensor,
        window: FlexTensor,
        main: FlexTensor,
        sink: FlexTensor,
        topk: FlexTensor,
        width: usize,
        scale: f64,
    ) -> (FlexTensor, FlexTensor) {
        let inputs = inputs(q, window, main, sink, topk, width, scale);
        with_real!(inputs.q.0, forward(&inputs))
    }

    fn readout_backward(
        q: FlexTensor,
        window: FlexTensor,
        main: FlexTensor,
        sink: FlexTensor,
        topk: FlexTensor,
        output: FlexTensor,
        lse: FlexTensor,
        grad: FlexTensor,
        width: usize,
        scale: f64,
    ) -> (FlexTensor, FlexTensor, FlexTensor, FlexTensor) {
        let inputs = inputs(q, window, main, sink, topk, width, scale);
        let (output, lse, grad) = (Rows::new(output), Rows::new(lse), Rows::new(grad));
        with_real!(inputs.q.0, backward(&inputs, &output, &lse, &grad))
    }
}

fn inputs(
    q: FlexTensor,
    window: FlexTensor,
    main: FlexTensor,
    sink: FlexTensor,
    topk: FlexTensor,
    width: usize,
    scale: f64,
) -> Inputs {
    Inputs {
        q: Rows::new(q),
        window: Rows::new(window),
        main: Rows::new(main),
        sink: Rows::new(sink),
        topk: indices(topk),
        width,
        scale,
    }
}

//! The tables of cases, one for each operator. A row says what is special about it; the first row of a table has nothing
//! special, and the others leave unsaid what they share with it.
//!
//! Kernels are compiled for the sizes that they meet, and a software adapter is slow at that: what only probes the
//! loops of the CPU code (odd sizes, other ranks of the same kind) is marked `on_cpu`, everything else runs `everywhere`.

use csa2_model::ops::AdamwStep;
use csa2_model::quant::Format;

use super::driver::{Case, Lists};
use super::elementwise::{RmsNorm, Rows, Swiglu};
use super::hyper::{Read, Sinkhorn, Streams, Write};
use super::kl::{self, Kl, Teacher};
use super::mass::{Mass, Range};
use super::quantize::{self, Quantize};
use super::readout::{Readout, Values};
use super::rotate::Rotate;
use super::select::{self, Select};
use super::update::{Adamw, CrossEntropy};

const fn everywhere<O: Copy>(name: &'static str, operator: O) -> Case<O> {
    Case { name, operator, everywhere: true }
}

const fn on_cpu<O: Copy>(name: &'static str, operator: O) -> Case<O> {
    Case { name, operator, everywhere: false }
}

const READ: Readout = Readout {
    batch: 2,
    seq: 9,
    before: 0,
    heads: 3,
    dim: 8,
    entries: 7,
    slots: 5,
    width: 3,
    lists: Lists::Random,
    values: Values::Normal,
    views: false,
};

pub const READOUT: &[Case<Readout>] = &[
    everywhere("random lists", READ),
    everywhere("ragged lists", Readout { lists: Lists::Ragged, ..READ }),
    everywhere("unsorted lists", Readout { lists: Lists::Unsorted, ..READ }),
    everywhere("entries listed many times", Readout { lists: Lists::Duplicates, slots: 8, ..READ }),
    everywhere("all rows without an entry", Readout { lists: Lists::None, ..READ }),
    everywhere("neither entry nor window", Readout { lists: Lists::None, width: 0, ..READ }),
    everywhere("rows that are not numbers", Readout { lists: Lists::Marked, ..READ }),
    everywhere("N < K", Readout { entries: 3, slots: 9, lists: Lists::Unsorted, ..READ }),
    everywhere("N = 0", Readout { entries: 0, ..READ }),
    everywhere("N = 0, no window", Readout { entries: 0, width: 0, ..READ }),
    everywhere("no window", Readout { width: 0, ..READ }),
    everywhere("window of one", Readout { width: 1, ..READ }),
    everywhere("window as long as the sequence", Readout { width: 9, ..READ }),
    everywhere("window longer than the sequence", Readout { width: 100, ..READ }),
    everywhere("equal logits", Readout { values: Values::Whole, lists: Lists::Duplicates, ..READ }),
    everywhere("large logits", Readout { values: Values::Large, ..READ }),
    everywhere("sink far above all logits", Readout { values: Values::Sink(800), ..READ }),
    everywhere("sink far below all logits", Readout { values: Values::Sink(-800), ..READ }),
    everywhere("views", Readout { views: true, ..READ }),
    // A sequence continued.
    everywhere("S = 1", Readout { seq: 1, ..READ }),
    everywhere("S = 1, many entries", Readout { seq: 1, before: 6, entries: 200, slots: 70, width: 5, ..READ }),
    everywhere("continued, every earlier row in reach", Readout { seq: 4, before: 2, width: 3, ..READ }),
    everywhere("continued, earlier rows out of reach", Readout { seq: 4, before: 9, width: 3, ..READ }),
    everywhere("continued, window longer than all", Readout { seq: 4, before: 5, width: 100, ..READ }),
    everywhere("continued, no window", Readout { seq: 4, before: 5, width: 0, ..READ }),
    everywhere("continued, views", Readout { seq: 4, before: 5, views: true, ..READ }),
    on_cpu(
        "continued, gradients in parts",
        Readout { seq: 199, before: 150, entries: 20, width: 30, lists: Lists::Ragged, ..READ },
    ),
    // Sizes.
    everywhere("H = 1", Readout { heads: 1, ..READ }),
    everywhere("H = 12", Readout { heads: 12, seq: 7, dim: 16, ..READ }),
    everywhere("d = 16", Readout { dim: 16, ..READ }),
    everywhere("d = 96", Readout { dim: 96, seq: 5, heads: 2, ..READ }),
    everywhere("d = 192", Readout { dim: 192, seq: 5, heads: 2, ..READ }),
    everywhere("d = 512", Readout { dim: 512, seq: 5, heads: 2, slots: 12, entries: 20, ..READ }),
    everywhere(
        "S = 8193",
        Readout { batch: 1, seq: 8193, heads: 1, entries: 8193, slots: 4, lists: Lists::Ragged, ..READ },
    ),
    everywhere("one entry read by thousands", Readout { batch: 1, seq: 8193, heads: 1, entries: 1, slots: 1, ..READ }),
    // More entries than a block of threads is likely to take at once.
    everywhere("hundreds of entries", Readout { seq: 3, before: 300, entries: 600, slots: 300, width: 260, ..READ }),
    on_cpu("one of everything", Readout { batch: 1, seq: 1, heads: 1, dim: 2, entries: 1, slots: 1, width: 1, ..READ }),
    on_cpu("d = 1", Readout { dim: 1, heads: 1, ..READ }),
    on_cpu("d = 6", Readout { batch: 3, seq: 5, heads: 2, dim: 6, entries: 4, slots: 9, width: 0, ..READ }),
    on_cpu("d = 3", Readout { seq: 5, heads: 2, dim: 3, entries: 2, slots: 4, width: 100, ..READ }),
    on_cpu("H = 12, narrow", Readout { seq: 7, heads: 12, dim: 16, entries: 6, slots: 4, width: 2, ..READ }),
    on_cpu("d = 96, H = 1", Readout { batch: 1, seq: 4, heads: 1, dim: 96, entries: 11, slots: 3, width: 4, ..READ }),
    on_cpu("d = 10, N = 0", Readout { seq: 3, heads: 4, dim: 10, entries: 0, slots: 3, width: 2, ..READ }),
    on_cpu("d = 10, N = 0, no window", Readout { seq: 3, heads: 4, dim: 10, entries: 0, slots: 3, width: 0, ..READ }),
    on_cpu("d = 7, S = 1", Readout { batch: 1, seq: 1, heads: 5, dim: 7, slots: 8, entries: 3, width: 0, ..READ }),
    on_cpu("d = 17", Readout { seq: 33, heads: 1, dim: 17, entries: 16, slots: 16, width: 8, ..READ }),
    on_cpu("B = 4, K = 1", Readout { batch: 4, seq: 2, heads: 2, dim: 4, entries: 5, slots: 1, width: 1, ..READ }),
];

const MASS_OF_OTHERS: Mass = Mass { read: READ, range: Range::Other(Lists::Random, 6) };

pub const MASS: &[Case<Mass>] = &[
    everywhere("of the entries that were read", Mass { read: READ, range: Range::Read }),
    everywhere("of other entries", MASS_OF_OTHERS),
    everywhere("ragged", Mass { range: Range::Other(Lists::Ragged, 6), ..MASS_OF_OTHERS }),
    everywhere("unsorted", Mass { range: Range::Other(Lists::Unsorted, 6), ..MASS_OF_OTHERS }),
    everywhere("duplicates", Mass { range: Range::Other(Lists::Duplicates, 6), ..MASS_OF_OTHERS }),
    everywhere("no entry", Mass { range: Range::Other(Lists::None, 6), ..MASS_OF_OTHERS }),
    everywhere("rows whose scores were not numbers", Mass { range: Range::Other(Lists::Marked, 6), ..MASS_OF_OTHERS }),
    everywhere("N < R", Mass { read: Readout { entries: 3, ..READ }, range: Range::Other(Lists::Unsorted, 9) }),
    everywhere("N = 0", Mass { read: Readout { entries: 0, ..READ }, ..MASS_OF_OTHERS }),
    everywhere("S = 1", Mass { read: Readout { seq: 1, ..READ }, ..MASS_OF_OTHERS }),
    everywhere(
        "S = 1, many entries",
        Mass { read: Readout { seq: 1, before: 6, entries: 200, slots: 70, ..READ }, range: Range::Read },
    ),
    everywhere(
        "large logits",
        Mass { read: Readout { values: Values::Large, lists: Lists::Unsorted, ..READ }, range: Range::Read },
    ),
    everywhere("sink far above", Mass { read: Readout { values: Values::Sink(800), ..READ }, ..MASS_OF_OTHERS }),
    everywhere("views", Mass { read: Readout { views: true, ..READ }, ..MASS_OF_OTHERS }),
    everywhere("H = 1", Mass { read: Readout { heads: 1, ..READ }, ..MASS_OF_OTHERS }),
    everywhere("H = 12", Mass { read: Readout { heads: 12, seq: 7, dim: 16, ..READ }, ..MASS_OF_OTHERS }),
    everywhere("d = 16", Mass { read: Readout { dim: 16, ..READ }, ..MASS_OF_OTHERS }),
    everywhere("d = 96", Mass { read: Readout { dim: 96, seq: 5, heads: 2, ..READ }, ..MASS_OF_OTHERS }),
    everywhere("d = 192", Mass { read: Readout { dim: 192, seq: 5, heads: 2, ..READ }, ..MASS_OF_OTHERS }),
    everywhere("d = 512", Mass { read: Readout { dim: 512, seq: 5, heads: 2, ..READ }, ..MASS_OF_OTHERS }),
    everywhere(
        "S = 8193",
        Mass {
            read: Readout { batch: 1, seq: 8193, heads: 1, entries: 8193, slots: 4, lists: Lists::Ragged, ..READ },
            range: Range::Read,
        },
    ),
    on_cpu("one of everything", Mass { read: ONE_READ, range: Range::Read }),
    on_cpu("one of everything, other entries", Mass { read: ONE_READ, ..MASS_OF_OTHERS }),
    on_cpu("d = 6", Mass { read: Readout { batch: 3, seq: 5, heads: 2, dim: 6, ..READ }, range: Range::Read }),
    on_cpu("d = 3", Mass { read: Readout { seq: 5, heads: 2, dim: 3, entries: 2, ..READ }, ..MASS_OF_OTHERS }),
    on_cpu("d = 10, N = 0", Mass { read: Readout { dim: 10, entries: 0, width: 0, ..READ }, range: Range::Read }),
    on_cpu("d = 7, S = 1", Mass { read: Readout { batch: 1, seq: 1, heads: 5, dim: 7, ..READ }, ..MASS_OF_OTHERS }),
    on_cpu(
        "d = 17",
        Mass { read: Readout { seq: 33, heads: 1, dim: 17, entries: 16, slots: 16, ..READ }, range: Range::Read },
    ),
    on_cpu("B = 4, K = 1", Mass { read: Readout { batch: 4, seq: 2, dim: 4, slots: 1, ..READ }, range: Range::Read }),
];

const ONE_READ: Readout = Readout { batch: 1, seq: 1, heads: 1, dim: 2, entries: 1, slots: 1, width: 1, ..READ };

const CHOOSE: Select = Select {
    batch: 2,
    seq: 12,
    heads: 2,
    dim: 4,
    ratio: 1,
    start: 0,
    missing: 0,
    topk: 3,
    blocks: 2,
    size: 2,
    scores: select::Scores::All,
    views: false,
};

/// Scores of few sizes on a longer sequence, where ties reach past K and past the pool.
const TIES: Select = Select { seq: 21, topk: 5, blocks: 3, size: 3, scores: select::Scores::Whole, ..CHOOSE };

pub const SELECT: &[Case<Select>] = &[
    everywhere("m = 1", CHOOSE),
    everywhere("m = 2, a group left over", Select { seq: 13, ratio: 2, ..CHOOSE }),
    everywhere(
        "m = 4, groups left over",
        Select { batch: 1, seq: 19, heads: 3, dim: 5, ratio: 4, topk: 2, size: 3, ..CHOOSE },
    ),
    // Ties.
    everywhere("ties", TIES),
    everywhere("all scores equal", Select { scores: select::Scores::Equal, ..TIES }),
    everywhere("zeros of either sign", Select { scores: select::Scores::Zeros, ..TIES }),
    everywhere("zeros of either sign, one head", Select { scores: select::Scores::Zeros, heads: 1, ..TIES }),
    // Extremes.
    everywhere("huge scores", Select { scores: select::Scores::Huge, ..TIES }),
    everywhere("infinite scores, a pool of one block", Select { scores: select::Scores::Infinite, blocks: 1, ..TIES }),
    everywhere("infinite scores", Select { scores: select::Scores::Infinite, ..TIES }),
    everywhere("scores that are not numbers", Select { scores: select::Scores::NotANumber, ..TIES }),
    everywhere("views", Select { views: true, ..CHOOSE }),
    // Numbers of entries.
    everywhere("N < K", Select { seq: 9, heads: 1, dim: 8, topk: 20, blocks: 3, ..CHOOSE }),
    everywhere("N = K", Select { seq: 9, topk: 9, ..CHOOSE }),
    everywhere("N = 0", Select { seq: 3, dim: 3, ratio: 4, blocks: 1, ..CHOOSE }),
    everywhere("N = 0, one query", Select { seq: 1, ratio: 2, ..CHOOSE }),
    everywhere("fewer entries than the tokens give, keys of padding", Select { missing: 5, ..CHOOSE }),
    everywhere("no entry yet, keys of padding", Select { missing: 6, ratio: 2, ..CHOOSE }),
    // Pools.
    everywhere("pool smaller than K", Select { seq: 30, topk: 7, blocks: 2, size: 2, ..CHOOSE }),
    everywhere("pool of one block", Select { seq: 11, heads: 12, dim: 16, topk: 5, blocks: 1, ..CHOOSE }),
    everywhere("pool of one entry", Select { seq: 17, dim: 96, ratio: 2, topk: 4, blocks: 1, size: 1, ..CHOOSE }),
    everywhere("last block partial", Select { seq: 30, heads: 1, dim: 2, topk: 7, blocks: 3, size: 4, ..CHOOSE }),
    everywhere("pool of everything", Select { seq: 16, dim: 2, topk: 4, blocks: 9, size: 5, ..CHOOSE }),
    everywhere("a block longer than the sequence", Select { size: 50, ..CHOOSE }),
    // A sequence continued.
    everywhere("continued", Select { seq: 5, start: 9, ..CHOOSE }),
    everywhere("continued, m = 2, inside a group", Select { seq: 6, start: 7, ratio: 2, ..CHOOSE }),
    everywhere("continued, m = 4", Select { seq: 7, start: 21, ratio: 4, ..CHOOSE }),
    everywhere("continued, keys of padding", Select { seq: 5, start: 9, missing: 3, ..CHOOSE }),
    everywhere("S = 1, many entries", Select { seq: 1, start: 999, topk: 40, blocks: 30, size: 8, ..CHOOSE }),
    everywhere("S = 1, many entries, ties", Select { seq: 1, start: 999, topk: 40, blocks: 30, size: 8, ..TIES }),
    everywhere("S = 1, m = 2", Select { seq: 1, start: 30, ratio: 2, ..CHOOSE }),
    // Sizes.
    everywhere(
        "one of everything",
        Select { batch: 1, seq: 1, heads: 1, dim: 1, topk: 1, blocks: 1, size: 1, ..CHOOSE },
    ),
    everywhere("H = 12", Select { heads: 12, ..CHOOSE }),
    everywhere("d = 16", Select { dim: 16, ..CHOOSE }),
    everywhere("d = 96", Select { dim: 96, ..CHOOSE }),
    everywhere("d = 192", Select { dim: 192, ..CHOOSE }),
    everywhere("d = 512", Select { dim: 512, ..CHOOSE }),
    everywhere("dozens of places", Select { batch: 1, seq: 70, dim: 3, topk: 30, blocks: 12, size: 3, ..CHOOSE }),
    // The reference keeps a score for every query and entry: thousands of queries over few entries, then few queries over
    // thousands of entries, never both (8193 x 8193 of them are half a gigabyte).
    everywhere("S = 8193, m = 128", Select { batch: 1, seq: 8193, heads: 1, dim: 8, ratio: 128, topk: 4, ..CHOOSE }),
    everywhere(
        "N = 8193",
        Select { batch: 1, seq: 3, start: 8190, heads: 1, dim: 8, topk: 4, blocks: 9, size: 8, ..CHOOSE },
    ),
    everywhere("N = 8193, ties", Select { batch: 1, seq: 3, start: 8190, topk: 600, blocks: 90, size: 8, ..TIES }),
    on_cpu("three rows of one query", Select { batch: 3, seq: 1, dim: 3, ratio: 2, topk: 4, ..CHOOSE }),
];

const TEACH: Kl = Kl {
    batch: 2,
    seq: 6,
    heads: 3,
    dim: 8,
    entries: 5,
    width: 4,
    lists: Lists::Random,
    scores: kl::Scores::NormalAndWhole,
    teacher: Teacher::Random,
    views: false,
};

pub const KL: &[Case<Kl>] = &[
    everywhere("random ranges", TEACH),
    everywhere("ragged ranges", Kl { lists: Lists::Ragged, ..TEACH }),
    everywhere("unsorted ranges", Kl { lists: Lists::Unsorted, ..TEACH }),
    everywhere("entries listed many times", Kl { lists: Lists::Duplicates, width: 7, ..TEACH }),
    everywhere("no entry", Kl { lists: Lists::None, ..TEACH }),
    everywhere("rows whose scores were not numbers", Kl { lists: Lists::Marked, ..TEACH }),
    everywhere("queries without a teacher", Kl { lists: Lists::Unsorted, teacher: Teacher::Silent, ..TEACH }),
    everywhere("a teacher of one entry", Kl { lists: Lists::Unsorted, teacher: Teacher::One, ..TEACH }),
    everywhere("all scores equal", Kl { scores: kl::Scores::Equal, ..TEACH }),
    everywhere("large scores", Kl { scores: kl::Scores::Large, ..TEACH }),
    everywhere("views", Kl { views: true, ..TEACH }),
    everywhere("N < R", Kl { entries: 3, width: 9, lists: Lists::Unsorted, ..TEACH }),
    everywhere("N = 0", Kl { entries: 0, ..TEACH }),
    everywhere("S = 1, many entries", Kl { seq: 1, entries: 200, width: 70, ..TEACH }),
    everywhere("S = 1, hundreds of places", Kl { seq: 1, entries: 600, width: 300, lists: Lists::Unsorted, ..TEACH }),
    everywhere("H = 1", Kl { heads: 1, ..TEACH }),
    everywhere("H = 12", Kl { heads: 12, dim: 16, ..TEACH }),
    everywhere("d = 16", Kl { dim: 16, ..TEACH }),
    everywhere("d = 96", Kl { dim: 96, heads: 2, ..TEACH }),
    everywhere("d = 192", Kl { dim: 192, heads: 2, ..TEACH }),
    everywhere("d = 512", Kl { dim: 512, heads: 2, ..TEACH }),
    // The reference keeps a score for every query and entry: few entries for so many queries.
    everywhere("S = 8193", Kl { batch: 1, seq: 8193, heads: 1, entries: 16, lists: Lists::Ragged, ..TEACH }),
    on_cpu("gradients in parts, not all as long", Kl { seq: 199, ..TEACH }),
    on_cpu("one of everything", Kl { batch: 1, seq: 1, heads: 1, dim: 1, entries: 1, width: 1, ..TEACH }),
    on_cpu("d = 5", Kl { batch: 3, seq: 4, heads: 1, dim: 5, entries: 4, width: 9, ..TEACH }),
    on_cpu("H = 12, narrow", Kl { seq: 3, heads: 12, dim: 16, entries: 6, width: 3, ..TEACH }),
    on_cpu("d = 96, R = N", Kl { batch: 1, seq: 5, heads: 2, dim: 96, entries: 9, width: 9, ..TEACH }),
    on_cpu("d = 4, N = 0", Kl { seq: 3, heads: 2, dim: 4, entries: 0, width: 3, ..TEACH }),
    on_cpu("d = 7, S = 1", Kl { batch: 1, seq: 1, heads: 4, dim: 7, entries: 3, width: 8, ..TEACH }),
    on_cpu("d = 3", Kl { seq: 17, heads: 2, dim: 3, entries: 8, width: 5, ..TEACH }),
];

const TURN: Rotate = Rotate { batch: 2, seq: 5, heads: 3, dim: 8, rotary: 4, views: false };

pub const ROTATE: &[Case<Rotate>] = &[
    everywhere("half of the channels", TURN),
    everywhere("all channels", Rotate { seq: 3, heads: 4, dim: 6, rotary: 6, ..TURN }),
    everywhere("views", Rotate { views: true, ..TURN }),
    everywhere("S = 1", Rotate { seq: 1, ..TURN }),
    everywhere("H = 1, d = 96", Rotate { seq: 4, heads: 1, dim: 96, rotary: 6, ..TURN }),
    everywhere("H = 12, d = 16", Rotate { batch: 3, seq: 7, heads: 12, dim: 16, rotary: 16, ..TURN }),
    everywhere("d = 192", Rotate { dim: 192, rotary: 64, ..TURN }),
    everywhere("d = 512", Rotate { dim: 512, rotary: 64, ..TURN }),
    everywhere("an odd number of channels", Rotate { batch: 1, seq: 9, heads: 2, dim: 7, rotary: 2, ..TURN }),
    everywhere("S = 8193", Rotate { batch: 1, seq: 8193, heads: 1, ..TURN }),
    on_cpu("one pair", Rotate { batch: 1, seq: 1, heads: 1, dim: 2, rotary: 2, ..TURN }),
];

const STORE: Quantize = Quantize {
    batch: 2,
    seq: 37,
    groups: 3,
    values: quantize::Values::Normal,
    views: false,
    // Every case stands for all formats.
    format: Format::Fp4E4m3,
};

pub const QUANTIZE: &[Case<Quantize>] = &[
    everywhere("normal numbers", STORE),
    everywhere("zeros of either sign", Quantize { values: quantize::Values::Zeros, ..STORE }),
    everywhere("subnormal numbers", Quantize { values: quantize::Values::Subnormal, ..STORE }),
    everywhere("huge numbers", Quantize { values: quantize::Values::Huge, ..STORE }),
    everywhere("ties of codes", Quantize { values: quantize::Values::Ties, seq: 500, ..STORE }),
    everywhere("ties of scales", Quantize { values: quantize::Values::ScaleTies, seq: 500, ..STORE }),
    everywhere("NaN and infinities", Quantize { values: quantize::Values::Marked, ..STORE }),
    everywhere("views", Quantize { views: true, ..STORE }),
    everywhere("one group", Quantize { batch: 1, seq: 1, groups: 1, ..STORE }),
    everywhere("d = 512", Quantize { seq: 9, groups: 16, ..STORE }),
    everywhere(
        "S = 8193, any size",
        Quantize { batch: 1, seq: 8193, groups: 2, values: quantize::Values::Bits, ..STORE },
    ),
];

const ROWS: Rows = Rows { batch: 2, seq: 5, width: 8, unit: 1.0, views: false };

pub const RMS_NORM: &[Case<RmsNorm>] = &[
    everywhere("rows of 8", RmsNorm(ROWS)),
    everywhere("small numbers", RmsNorm(Rows { unit: 1e-3, ..ROWS })),
    everywhere("large numbers", RmsNorm(Rows { unit: 1e6, ..ROWS })),
    everywhere("nothing but zeros", RmsNorm(Rows { unit: 0.0, ..ROWS })),
    everywhere("views", RmsNorm(Rows { views: true, ..ROWS })),
    everywhere("rows of two", RmsNorm(Rows { width: 2, ..ROWS })),
    everywhere("rows of 7", RmsNorm(Rows { width: 7, ..ROWS })),
    everywhere("rows of 96", RmsNorm(Rows { width: 96, ..ROWS })),
    everywhere("rows of 512", RmsNorm(Rows { width: 512, ..ROWS })),
    everywhere("S = 1", RmsNorm(Rows { batch: 1, seq: 1, ..ROWS })),
    everywhere("S = 8193", RmsNorm(Rows { batch: 1, seq: 8193, ..ROWS })),
    // The gradient is what two numbers near 1 differ by.
    on_cpu("rows of one", RmsNorm(Rows { width: 1, ..ROWS })),
];

pub const SWIGLU: &[Case<Swiglu>] = &[
    everywhere("rows of 8", Swiglu(ROWS)),
    everywhere("gates far from 0", Swiglu(Rows { unit: 30.0, ..ROWS })),
    everywhere("gates of 0", Swiglu(Rows { unit: 0.0, ..ROWS })),
    everywhere("views", Swiglu(Rows { views: true, ..ROWS })),
    everywhere("rows of 7", Swiglu(Rows { width: 7, ..ROWS })),
    everywhere("rows of 512", Swiglu(Rows { width: 512, ..ROWS })),
    everywhere("S = 1", Swiglu(Rows { batch: 1, seq: 1, ..ROWS })),
    everywhere("S = 8193", Swiglu(Rows { batch: 1, seq: 8193, ..ROWS })),
];

const LOGITS: CrossEntropy = CrossEntropy { rows: 21, vocabulary: 11, unit: 1.0, outside: None };

pub const CROSS_ENTROPY: &[Case<CrossEntropy>] = &[
    everywhere("11 symbols", LOGITS),
    everywhere("logits far from 0", CrossEntropy { unit: 200.0, ..LOGITS }),
    everywhere("equal logits", CrossEntropy { unit: 0.0, ..LOGITS }),
    everywhere("one row", CrossEntropy { rows: 1, ..LOGITS }),
    everywhere("one symbol", CrossEntropy { vocabulary: 1, ..LOGITS }),
    everywhere("256 symbols", CrossEntropy { vocabulary: 256, ..LOGITS }),
    everywhere("more rows than a task takes", CrossEntropy { rows: 8193, vocabulary: 5, ..LOGITS }),
    everywhere("a target beyond the vocabulary", CrossEntropy { outside: Some(11), ..LOGITS }),
    everywhere("a target below 0", CrossEntropy { outside: Some(-1), ..LOGITS }),
];

const STEP: AdamwStep =
    AdamwStep { rate: 3e-3, factor: 1.0, betas: [0.9, 0.95], epsilon: 1e-8, weight_decay: 0.01, step: 7 };

pub const ADAMW: &[Case<Adamw>] = &[
    everywhere("a step", Adamw { count: 37, step: STEP }),
    everywhere("the first step", Adamw { count: 37, step: AdamwStep { step: 1, ..STEP } }),
    everywhere("a late step", Adamw { count: 37, step: AdamwStep { step: 100_000, ..STEP } }),
    everywhere("clipped", Adamw { count: 37, step: AdamwStep { factor: 0.01, ..STEP } }),
    everywhere("no decay", Adamw { count: 1, step: AdamwStep { weight_decay: 0.0, ..STEP } }),
    everywhere("strong decay", Adamw { count: 37, step: AdamwStep { rate: 0.5, weight_decay: 1.0, ..STEP } }),
    everywhere("more than a task takes", Adamw { count: 40_001, step: STEP }),
];

const FOUR: Streams = Streams { rows: 21, count: 4, channels: 8, unit: 1.0, views: false };

pub const SINKHORN: &[Case<Sinkhorn>] = &[
    everywhere("four streams", Sinkhorn(FOUR)),
    everywhere("equal logits", Sinkhorn(Streams { unit: 0.0, ..FOUR })),
    everywhere("logits far from 0", Sinkhorn(Streams { unit: 4.0, ..FOUR })),
    everywhere("views", Sinkhorn(Streams { views: true, ..FOUR })),
    everywhere("one stream", Sinkhorn(Streams { count: 1, ..FOUR })),
    everywhere("two streams, one token", Sinkhorn(Streams { rows: 1, count: 2, ..FOUR })),
    everywhere("seven streams", Sinkhorn(Streams { count: 7, ..FOUR })),
    everywhere("8193 tokens", Sinkhorn(Streams { rows: 8193, ..FOUR })),
    on_cpu("as many as lie side by side", Sinkhorn(Streams { rows: 16, ..FOUR })),
    on_cpu("one more than a task", Sinkhorn(Streams { rows: 65, ..FOUR })),
];

pub const HYPER_READ: &[Case<Read>] = &[
    everywhere("four streams", Read(FOUR)),
    everywhere("views", Read(Streams { views: true, ..FOUR })),
    everywhere("one stream", Read(Streams { count: 1, ..FOUR })),
    everywhere("three streams, odd channels", Read(Streams { count: 3, channels: 37, ..FOUR })),
    everywhere("one channel", Read(Streams { channels: 1, ..FOUR })),
    everywhere("8193 tokens", Read(Streams { rows: 8193, ..FOUR })),
];

pub const HYPER_WRITE: &[Case<Write>] = &[
    everywhere("four streams", Write(FOUR)),
    everywhere("small numbers", Write(Streams { unit: 1e-3, ..FOUR })),
    everywhere("views", Write(Streams { views: true, ..FOUR })),
    everywhere("one stream", Write(Streams { count: 1, ..FOUR })),
    everywhere("three streams, odd channels", Write(Streams { count: 3, channels: 37, ..FOUR })),
    everywhere("one channel, one token", Write(Streams { rows: 1, channels: 1, ..FOUR })),
    everywhere("8193 tokens", Write(Streams { rows: 8193, ..FOUR })),
];

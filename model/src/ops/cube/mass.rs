//! The indexer's teacher on the device.

use burn::backend::tensor::IntTensor;
use burn::tensor::DType;
use burn_cubecl::CubeBackend;
use burn_cubecl::kernel::cast;

use super::Float;
use super::packed::Rows;
use super::scores::{Candidates, Kind, Source, score};
use super::shared::{dims, empty, indices, rows, single};
use crate::ops::MassBackend;

impl MassBackend for CubeBackend {
    fn attention_mass(q: Float, main: Float, lse: Float, range: IntTensor<Self>, scale: f64) -> Float {
        let (q, main, lse, range) = (rows(q), rows(main), single(lse), indices(range));
        let [batch, seq, width] = dims(&range);
        let [_, entries, _] = dims(&main);
        let mass = empty(&q, [batch, seq, width], DType::F32);
        let candidates = Candidates { source: Source::List, list: &range, width, size: 1, start: 0, ratio: 1, entries };
        score(&q, Rows::plain(&main), &lse, candidates, scale, Kind::Mass, 0..seq, &mass);
        cast(mass, q.dtype)
    }
}

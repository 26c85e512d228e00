use burn::tensor::{DType, Device, Int, Tensor};
use csa2_model::ops::{self, PoolUse, SelectSpec, reference};

use super::common::random::Source;
use super::common::{assert_close, ints, numbers};
use super::{copied, device, gradient};

/// Numbers that both formats hold, as a leaf in half precision on wgpu and a leaf in f32 on the CPU.
fn leaves<const D: usize>(source: &mut Source, dims: [usize; D], wgpu: &Device) -> [Tensor<D>; 2] {
    let numbers = source.normal(dims, wgpu, DType::F16);
    let single = Tensor::from_data(numbers.to_data().convert::<f32>(), &Device::flex().autodiff());
    [numbers.require_grad(), single.require_grad()]
}

#[test]
fn half_precision_inputs() {
    let Some(wgpu) = device() else { return };
    if !wgpu.supports_dtype(DType::F16) {
        println!("no f16 on this adapter: 1 case not run");
        return;
    }
    let (there, here) = (wgpu.autodiff(), Device::flex().autodiff());
    let mut source = Source::new(3);
    let source = &mut source;
    let (q, entries) = (leaves(source, [1, 5, 3, 12], &there), leaves(source, [1, 7, 12], &there));
    let (window, sink) = (leaves(source, [1, 5, 12], &there), leaves(source, [3], &there));
    let weights = leaves(source, [1, 5, 3], &there);
    let list = source.lists([1, 5, 4], 7, &here);
    let lists: [Tensor<3, Int>; 2] = [Tensor::from_data(list.to_data(), &there), list];
    let teacher = source.normal([1, 5, 4], &here, DType::F32).abs();
    let angles = [source.normal([5, 2], &here, DType::F32), source.normal([5, 2], &here, DType::F32)];

    let run = |side: usize, device: &Device| {
        let (q, entries, window) = (q[side].clone(), entries[side].clone(), window[side].clone());
        let (sink, weights, list) = (sink[side].clone(), weights[side].clone(), lists[side].clone());
        let on = |tensor: &Tensor<2>| copied(tensor, device).cast(q.dtype());
        let (cos, sin) = (on(&angles[0]), on(&angles[1]));
        let teacher = copied(&teacher, device).cast(q.dtype());
        let [readout, rotate, mass, kl]: [Tensor<4>; 4] = if side == 0 {
            let rotated = ops::rotate(q.clone(), cos, sin, false);
            let (output, lse) =
                ops::readout(q.clone(), window.clone(), entries.clone(), sink.clone(), list.clone(), 3, 0.3);
            let mass = ops::attention_mass(q.clone(), entries.clone(), lse, list.clone(), 0.3);
            let kl = ops::index_kl(q.clone(), entries.clone(), weights.clone(), teacher, list);
            [output, rotated, mass.unsqueeze(), kl.unsqueeze()]
        } else {
            let rotated = reference::rotate(q.clone(), cos, sin, false);
            let (output, lse) =
                reference::readout(q.clone(), window.clone(), entries.clone(), sink.clone(), list.clone(), 3, 0.3);
            let mass = reference::attention_mass(q.clone(), entries.clone(), lse, list.clone(), 0.3);
            let kl = reference::index_kl(q.clone(), entries.clone(), weights.clone(), teacher, list);
            [output, rotated, mass.unsqueeze(), kl.unsqueeze()]
        };
        let loss = readout.clone().square().sum() + rotate.clone().square().sum() + kl.clone().sum();
        let grads = loss.backward();
        [
            ("read-out", numbers(readout)),
            ("rotation", numbers(rotate)),
            ("mass", numbers(mass)),
            ("indexer's loss", numbers(kl)),
            ("query gradient", gradient(&q, &grads)),
            ("entry gradient", gradient(&entries, &grads)),
            ("window gradient", gradient(&window, &grads)),
            ("sink gradient", gradient(&sink, &grads)),
            ("weight gradient", gradient(&weights, &grads)),
        ]
    };
    for ((what, there), (_, here)) in run(0, &there).into_iter().zip(run(1, &here)) {
        let largest = here.iter().fold(1.0_f64, |most, x| most.max(x.abs()));
        // Results are rounded to 11 bits; the slopes that flow back were, too.
        assert_close(what, &there, &here, 4e-3 * largest);
    }

    let spec = SelectSpec { ratio: 1, start: 3, entries: 7, topk: 3, pool: PoolUse::None };
    let [found, exact] = [0, 1].map(|side| {
        ints(ops::index_select(q[side].clone(), entries[side].clone(), weights[side].clone(), None, spec).topk)
    });
    assert_eq!(found, exact);
}

use burn::tensor::{DType, Device};
use csa2_model::ops::{self, reference};

use super::common::random::Source;
use super::common::{assert_close, numbers};
use super::{copied, device, gradient};

#[test]
fn rotation_and_its_gradient() {
    let Some(wgpu) = device() else { return };
    let (wgpu, cpu) = (wgpu.autodiff(), Device::flex().autodiff());
    let mut source = Source::new(1);
    for ([batch, seq, heads, dim], pairs, inverse) in
        [([2, 5, 3, 10], 2, false), ([1, 1, 1, 4], 2, true), ([2, 7, 12, 33], 8, true)]
    {
        let mut normal = |dims| source.normal(dims, &cpu, DType::F32);
        let (x, grad) = (normal([batch, heads, seq, dim]), normal([batch, seq, heads, dim]));
        let (cos, sin) = (source.normal([seq, pairs], &cpu, DType::F32), source.normal([seq, pairs], &cpu, DType::F32));
        let here = x.require_grad();
        let there = copied(&here, &wgpu).require_grad();
        // The operator sees a view whose axes are swapped.
        let y = reference::rotate(here.clone().swap_dims(1, 2), cos.clone(), sin.clone(), inverse);
        let on_wgpu = ops::rotate(there.clone().swap_dims(1, 2), copied(&cos, &wgpu), copied(&sin, &wgpu), inverse);
        assert_close("rotated", &numbers(on_wgpu.clone()), &numbers(y.clone()), 1e-5);
        let here = gradient(&here, &(y * grad.clone()).sum().backward());
        let there = gradient(&there, &(on_wgpu * copied(&grad, &wgpu)).sum().backward());
        assert_close("gradient", &there, &here, 1e-5);
    }
}

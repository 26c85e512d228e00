//! From the mathematics to the network: the derivative of csa2's own read-out operator, taken by automatic differentiation, is the covariance
//! of the points that `geometry` computes, with window, selected entries and sink together, once the rotations are undone.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use csa2::geometry::{Entries, ReadOut, Rope};
use csa2_model::attention::{RopeTable, rope_frequencies};
use csa2_model::ops;

const HEADS: usize = 2;
const WIDTH: usize = 6;
const ROTARY: usize = 4;
const SEQ: usize = 5;
const WINDOW: usize = 3;
const ENTRIES: usize = 7;
const BASE: f64 = 30.0;

fn device() -> Device {
    Device::flex().autodiff()
}

fn tensor<const D: usize>(values: &[f64], dims: [usize; D]) -> Tensor<D> {
    Tensor::from_data(TensorData::new(values.to_vec(), dims), (&device(), DType::F64))
}

fn numbers<const D: usize>(tensor: Tensor<D>) -> Vec<f64> {
    tensor.into_data().convert::<f64>().iter().collect()
}

/// Numbers that are as good as random, of size about 1.
fn noise(seed: u64, count: usize) -> Vec<f64> {
    (0..count as u64)
        .map(|at| {
            let mixed = (seed * 1_000_003 + at).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            ((mixed >> 11) as f64 / (1_u64 << 52) as f64 - 1.0) * 1.5
        })
        .collect()
}

#[test]
fn the_operators_jacobian_is_the_covariance_of_what_it_reads() {
    let (scale, sinks) = ((WIDTH as f64).powf(-0.5), [0.4, -1.2]);
    let window = noise(1, SEQ * WIDTH);
    let main = noise(2, ENTRIES * WIDTH);
    let queries = noise(3, SEQ * HEADS * WIDTH);
    // The last query reads the tokens 2 to 4 of the window and these entries.
    let read = [1_i32, 2, 5, 6];
    let topk = Tensor::<3, Int>::from_data(TensorData::new(read.repeat(SEQ), [1, SEQ, read.len()]), &device());
    let table = RopeTable::new(&rope_frequencies(ROTARY, BASE, None), SEQ, 1, DType::F64, &device());
    let turn = |x: Tensor<4>, back: bool| ops::rotate(x, table.cos(), table.sin(), back);

    // As a layer does it: the query is rotated, window and entries are rotated already, the output is rotated back.
    let layer = |q: Tensor<4>| {
        let (window, main) = (tensor(&window, [1, SEQ, WIDTH]), tensor(&main, [1, ENTRIES, WIDTH]));
        let sink = tensor(&sinks, [HEADS]);
        turn(ops::readout(turn(q, false), window, main, sink, topk.clone(), WINDOW, scale).0, true)
    };
    let position = SEQ - 1;
    let rope = Rope::standard(ROTARY, BASE).unwrap();
    let turned = |x: &[f64], at: f64| -> Vec<f64> {
        let mut out = x[..WIDTH - ROTARY].to_vec();
        out.extend(rope.rotate(&x[WIDTH - ROTARY..], at).unwrap());
        out
    };
    let row = |rows: &[f64], index: usize| rows[index * WIDTH..(index + 1) * WIDTH].to_vec();
    for (head, sink) in sinks.into_iter().enumerate() {
        let near = (position + 1 - WINDOW..=position).map(|token| row(&window, token));
        let far = read.iter().map(|&entry| row(&main, entry as usize));
        let points = Entries::from_rows(&near.chain(far).collect::<Vec<_>>()).unwrap();
        let read_out = ReadOut::new(points, scale).unwrap().with_sink(sink).unwrap();
        let q = row(&queries, position * HEADS + head);
        let expected = read_out.jacobian(&turned(&q, position as f64)).unwrap();
        // R^T J R, column by column.
        let unit = |k: usize| (0..WIDTH).map(|i| f64::from(u8::from(i == k))).collect::<Vec<f64>>();
        let column = |k: usize| -> Vec<f64> {
            let along = turned(&unit(k), position as f64);
            let moved: Vec<f64> = (0..WIDTH).map(|i| (0..WIDTH).map(|j| expected[(i, j)] * along[j]).sum()).collect();
            turned(&moved, -(position as f64))
        };
        let columns: Vec<Vec<f64>> = (0..WIDTH).map(column).collect();
        // Row by row: of one output for all numbers of the query.
        let rows = (0..WIDTH).map(|channel| columns.iter().map(|column| column[channel]).collect::<Vec<f64>>());
        for (channel, expected) in rows.enumerate() {
            let q = tensor(&queries, [1, SEQ, HEADS, WIDTH]).require_grad();
            let picked = layer(q.clone()).narrow(1, position, 1).narrow(2, head, 1).narrow(3, channel, 1);
            let gradient = numbers(q.grad(&picked.sum().backward()).unwrap());
            for other in 0..SEQ * HEADS {
                let found = row(&gradient, other);
                for k in 0..WIDTH {
                    let right = if other == position * HEADS + head { expected[k] } else { 0.0 };
                    assert!(
                        (found[k] - right).abs() < 1e-12,
                        "head {head}, output {channel}, query {other}.{k}: {} {right}",
                        found[k]
                    );
                }
            }
        }
        // Nothing here is flat: sink, window and entries all have a part.
        let p = read_out.read(&turned(&q, position as f64)).unwrap().p;
        assert!(p.len() == WINDOW + read.len() + 1 && p.iter().all(|p| *p > 1e-3), "{p:?}");
    }
}

//! What a token costs at long context, on a network with random weights and made-up caches: the released layout in small
//! against windows without a limit, the rate at which index keys are scored, and that of saving and loading.
//!
//! ```sh
//! cargo run --release -p csa2-infer --example decode_cost -- 16384 524288
//! ```

use std::hint::black_box;
use std::time::{Duration, Instant};

use burn::tensor::{Device, Tensor, TensorData};
use csa2_infer::{Options, Session};
use csa2_model::config::ModelConfig;
use csa2_model::init::initialize;
use csa2_model::mix::Mode;
use csa2_model::model::Model;
use csa2_model::ops::{Place, PoolUse, StoredSpec, stored_select};
use csa2_model::quant::Format;
use csa2_model::store::Store;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const RELEASED: &str = "swa*2 (full@2 reuse)*2 full@1+pool reuse reindex reuse";
const DENSE: &str = "dense*10";
const TOKENS: usize = 100;

fn config(mix: &str) -> ModelConfig {
    let pool = if mix.contains("pool") { "pool = { blocks = 256, block_size = 8 }\n" } else { "" };
    toml::from_str(&format!(
        "layers = '{mix}'\nvocab_size = 256\nd_model = 128\nheads = 4\nhead_dim = 128\nrope_dim = 32\nquery_rank = 64\n\
         window = 128\ntopk = 64\nindex_heads = 4\nindex_dim = 64\n{pool}ffn = {{ kind = 'dense', width = 256 }}\n\
         [quantization]\nmain_kv = 'fp4'\nindex = 'fp4'\nwindow = 'fp8'"
    ))
    .expect("a right configuration")
}

/// Numbers that look random.
fn numbers() -> impl FnMut() -> f32 {
    let mut state = 88_172_645_463_325_252_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / 8_388_608.0 - 1.0
    }
}

/// The lower quartile, in microseconds: on a machine that does other things as well, the median is theirs.
fn quartile(mut times: Vec<Duration>) -> f64 {
    times.sort();
    times[times.len() / 4].as_secs_f64() * 1e6
}

/// Bytes of this process in memory, where Linux tells.
fn resident() -> Option<u64> {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    Some(pages * 4096)
}

fn cost(mix: &str, lengths: &[usize]) -> Session {
    let device = Device::flex();
    let config = config(mix);
    let model = Model::new(&config, None, &device).expect("a right configuration");
    let model = initialize(model, 0.0, |path| ChaCha8Rng::seed_from_u64(path.len() as u64));
    let longest = lengths.iter().max().expect("a length") + 2 * TOKENS;
    let mut session = Session::new(&model, &config, 1, Options::new(longest)).expect("room for the caches");
    println!("{mix}");
    for &length in lengths {
        let before = (resident(), session.bytes().total());
        session.make_up(length - session.lengths()[0], numbers()).expect("within the maximum");
        let grown = (resident(), session.bytes().total());
        let mut times = vec![Vec::new(); config.layers.len() + 1];
        let scored = session.scored().iter().sum::<u64>();
        for step in 0..TOKENS {
            let start = Instant::now();
            let (logits, layers) = session.decode_timed(&[(step % 256) as i32]).expect("a token");
            black_box(logits.into_data());
            times[layers.len()].push(start.elapsed());
            for (times, time) in times.iter_mut().zip(layers) {
                times.push(time);
            }
        }
        let scored = (session.scored().iter().sum::<u64>() - scored) / TOKENS as u64;
        let quartiles: Vec<f64> = times.into_iter().map(quartile).collect();
        let of = |modes: &[Mode]| -> f64 {
            config
                .layers
                .layers()
                .iter()
                .filter(|layer| modes.contains(&layer.mode))
                .map(|layer| quartiles[layer.index])
                .sum()
        };
        println!(
            "{length:>8} tokens: {:8.0} us a token; swa {:6.0}, full {:8.0}, reuse {:6.0}, reindex {:6.0}, dense {:8.0}; \
             {scored} entries scored; {} bytes; memory grew by {:?} for {}",
            quartiles[config.layers.len()],
            of(&[Mode::Swa]),
            of(&[Mode::Full]),
            of(&[Mode::Reuse]),
            of(&[Mode::Reindex]),
            of(&[Mode::Dense]),
            session.bytes().total(),
            grown.0.zip(before.0).map(|(after, before)| after as i64 - before as i64),
            grown.1 - before.1,
        );
    }
    session
}

/// Bytes a second that both memory and all threads manage when memory is copied: bytes copied, not bytes moved.
fn copying() -> f64 {
    let from = vec![1_u8; 1 << 28];
    let mut to = vec![0_u8; 1 << 28];
    let mut best = f64::INFINITY;
    for _ in 0..7 {
        let start = Instant::now();
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        let part = from.len().div_ceil(threads);
        std::thread::scope(|scope| {
            for (from, to) in from.chunks(part).zip(to.chunks_mut(part)) {
                scope.spawn(move || to.copy_from_slice(from));
            }
        });
        best = best.min(start.elapsed().as_secs_f64());
        black_box(&to);
    }
    from.len() as f64 / best
}

fn scoring(heads: usize, entries: usize) -> f64 {
    let (device, dim, topk) = (Device::flex(), 64, 64);
    let mut next = numbers();
    let mut keys = Store::new(dim, Some(Format::Fp4E8m0));
    for _ in 0..entries / 1024 {
        keys.push(&(0..1024 * dim).map(|_| next()).collect::<Vec<f32>>());
    }
    let mut tensor = |dims: [usize; 4]| {
        let values: Vec<f32> = (0..dims.iter().product()).map(|_| next()).collect();
        Tensor::<4>::from_data(TensorData::new(values, dims), &device)
    };
    let (q, weights) = (tensor([1, 1, heads, dim]), tensor([1, 1, 1, heads]).squeeze_dim::<3>(1));
    let places = [Place { row: 0, position: entries - 1 }];
    let spec = StoredSpec { ratio: 1, topk, pool: PoolUse::None };
    let mut best = f64::INFINITY;
    for _ in 0..20 {
        let start = Instant::now();
        black_box(stored_select(q.clone(), weights.clone(), None, &[&keys], &places, spec));
        best = best.min(start.elapsed().as_secs_f64());
    }
    keys.bytes() as f64 / best
}

/// Tokens a second of a prompt of `length` tokens.
fn prefill(length: usize) -> f64 {
    let device = Device::flex();
    let config = config(RELEASED);
    let model = Model::new(&config, None, &device).expect("a right configuration");
    let model = initialize(model, 0.0, |path| ChaCha8Rng::seed_from_u64(path.len() as u64));
    let mut session = Session::new(&model, &config, 1, Options::new(length)).expect("room for the caches");
    let start = Instant::now();
    let prompt: Vec<i32> = (0..length).map(|at| (at * at % 251) as i32).collect();
    black_box(session.prefill(&[prompt]).expect("tokens").into_data());
    length as f64 / start.elapsed().as_secs_f64()
}

fn main() {
    let lengths: Vec<usize> = std::env::args().skip(1).map(|text| text.parse().expect("a number of tokens")).collect();
    let lengths = if lengths.is_empty() { vec![16 << 10, 512 << 10] } else { lengths };
    println!("copying: {:.2} GB/s", copying() / 1e9);
    for heads in [2, 4, 8, 16] {
        let entries = 1 << 20;
        println!("scoring packed keys, {heads} heads: {:.2} GB/s", scoring(heads, entries) / 1e9);
    }
    println!("copying: {:.2} GB/s", copying() / 1e9);
    for length in [2048, 16384] {
        println!("prefill of {length} tokens: {:.0} tokens/s", prefill(length));
    }
    let session = cost(RELEASED, &lengths);
    let path = std::env::temp_dir().join(format!("csa2-cache-{}", std::process::id()));
    for _ in 0..3 {
        let start = Instant::now();
        session.save(&path).expect("a file can be written");
        let saved = start.elapsed().as_secs_f64();
        let size = std::fs::metadata(&path).map_or(0, |about| about.len());
        let start = Instant::now();
        let back = Session::load(&path, session.model(), session.config(), session.options()).expect("the same model");
        let loaded = start.elapsed().as_secs_f64();
        let start = Instant::now();
        black_box(back.fork());
        let forked = start.elapsed().as_secs_f64();
        let rate = |seconds: f64| size as f64 / seconds / 1e6;
        println!(
            "{size} bytes saved at {:.0}, loaded at {:.0}, forked at {:.0} MB/s",
            rate(saved),
            rate(loaded),
            rate(forked)
        );
    }
    std::fs::remove_file(&path).ok();
    drop(session);
    cost(DENSE, &lengths);
}

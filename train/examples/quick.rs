use std::sync::{Arc, atomic::AtomicBool};
use csa2_train::{config::RunConfig, trainer::Trainer};
#[global_allocator]
static A: mimalloc::MiMalloc = mimalloc::MiMalloc;
fn main() {
    let mix = std::env::args().nth(1).unwrap();
    let seed: u64 = std::env::args().nth(2).unwrap().parse().unwrap();
    let extra = std::env::args().nth(3).unwrap_or_default();
    let text = std::fs::read_to_string("/tmp/quick.toml").unwrap().replace("MIX", &mix).replace("#EXTRA", &extra);
    let config: RunConfig = toml::from_str(&text).unwrap();
    let task: Arc<dyn csa2_train::tasks::Task> = Arc::from(config.task.build(".".as_ref()).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    let t = Trainer { config: &config, task, seed, config_hash: "x", folder: folder.path(), device: burn::tensor::Device::flex(), stop: &stop, progress: &|_| () };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let out = pool.install(|| t.run()).unwrap();
    for line in std::fs::read_to_string(folder.path().join("metrics.jsonl")).unwrap().lines() { if line.contains("validation") { println!("{line}"); } }
    println!("{mix} seed {seed}: {out:?}");
}

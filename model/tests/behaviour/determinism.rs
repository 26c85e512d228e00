//! The same bits every time and on any number of threads.

use burn::tensor::Device;
use csa2_model::attention::Context;
use csa2_model::config::{FfnConfig, ModelConfig};

use super::common::small::{self, MIXES};
use super::{PHASES, logit_rows, model, tokens};

#[test]
fn two_passes_give_the_same_bits() {
    for mix in MIXES {
        let config = small::config(mix);
        let model = model(&config);
        for phase in PHASES {
            let run = || logit_rows(&model, &config, &tokens([3, 13]), [3, 13], phase);
            assert_eq!(run(), run(), "{mix} {phase:?}");
        }
    }
}

/// The bits of logits, index losses and all gradients of one step.
fn step(config: &ModelConfig, shape: [usize; 2]) -> Vec<Vec<u32>> {
    let model = small::model(config, 4, &Device::flex().autodiff());
    let ids = tokens(shape);
    let out = small::forward(&model, config, &ids, shape, |cx: Context| cx.with_index_loss(true));
    let mut loss = small::language_loss(out.logits.clone(), &ids);
    let mut bits = vec![small::bits(&small::floats(out.logits))];
    for (_, index_loss) in out.index_losses {
        bits.push(small::bits(&small::floats(index_loss.clone())));
        loss = loss + index_loss;
    }
    bits.extend(small::gradients(&model, &loss.backward()).into_values().map(|gradient| small::bits(&gradient)));
    bits
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    // Large enough for matrix products and reductions to be shared out.
    let config = ModelConfig {
        d_model: 64,
        head_dim: 32,
        index_dim: 16,
        topk: 8,
        pool: Some(csa2_model::config::PoolConfig { blocks: 4, block_size: 4 }),
        ffn: FfnConfig::Dense { width: 256 },
        ..small::config("swa full@2 reuse full+pool reindex dense")
    };
    for config in [small::released(&config), config] {
        on_any_number_of_threads(&config);
    }
}

fn on_any_number_of_threads(config: &ModelConfig) {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            assert_eq!(rayon::current_num_threads(), threads);
            step(config, [16, 64])
        })
    };
    let one = run(1);
    for threads in [2, 3] {
        assert!(one == run(threads), "{threads} threads compute other bits than one: {:?}", config.ffn);
    }
}

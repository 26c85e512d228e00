use super::*;

fn config() -> TrainConfig {
    toml::from_str("tokens = 160000\nbatch = 32\nlearning_rate = 3e-3").unwrap()
}

#[test]
fn the_budget_is_used_up_to_the_last_whole_step() {
    assert_eq!(config().steps(48), 104);
    assert_eq!(TrainConfig { dense: 0.4, ..config() }.dense_steps(48), 42);
}

#[test]
fn the_learning_rate_rises_and_falls() {
    let config = config();
    let rates: Vec<f64> = (0..100).map(|step| config.learning_rate_at(step, 100)).collect();
    assert!(rates[0] > 0.0 && rates[0] < rates[4]);
    assert!((rates[5] - 3e-3).abs() < 1e-12, "{}", rates[5]);
    assert!(rates[5..].windows(2).all(|pair| pair[0] > pair[1]));
    assert!((rates[99] - 3e-4).abs() < 1e-5, "{}", rates[99]);
}

#[test]
fn settings_that_cannot_be_are_refused_by_name() {
    let refused = |change: fn(&mut TrainConfig)| {
        let mut config = config();
        change(&mut config);
        config.validate(48).unwrap_err().to_string()
    };
    assert_eq!(refused(|c| c.batch = 0), "`train.batch = 0`: a step needs 1 to 1048576 sequences");
    let long = TrainConfig { batch: 4096, tokens: u64::MAX, ..config() }.validate(1 << 20).unwrap_err();
    assert_eq!(
        long.to_string(),
        "`train.batch = 4096`: with sequences of 1048576 tokens, 2047 fill the 2147483647 tokens that a step can number"
    );
    assert_eq!(
        refused(|c| c.tokens = 1000),
        "`train.tokens = 1000`: one step takes 1536 tokens (batch x sequence length)"
    );
    assert_eq!(refused(|c| c.dense = 1.5), "`train.dense = 1.5`: a share lies between 0 and 1");
    assert!(refused(|c| c.learning_rate = f64::NAN).starts_with("`train.learning_rate = NaN`"));
    assert!(refused(|c| c.clip = 0.0).starts_with("`train.clip = 0.0`"));
    assert!(refused(|c| c.betas = [0.9, 1.0]).starts_with("`train.betas = [0.9, 1.0]`"));
    assert!(refused(|c| c.betas = [0.9, 1.0 - 1e-12]).starts_with("`train.betas = "), "1 as a 32-bit number");
    assert!(refused(|c| c.index_loss = -1.0).starts_with("`train.index_loss = -1.0`"));
    assert!(refused(|c| c.expert_bias_speed = Some(-1e-3)).starts_with("`train.expert_bias_speed = -0.001`"));
    assert_eq!(
        refused(|c| c.quantize_from = 105),
        "`train.quantize_from = 105`: the run has 104 steps; at 104 only the evaluation at its end is quantized"
    );
    assert!(TrainConfig { quantize_from: 104, ..config() }.validate(48).is_ok());
    assert!(refused(|c| c.evaluate_every = 0).starts_with("`train.evaluate_every = 0`"));
    assert!(config().validate(48).is_ok());
}

#[test]
fn a_pool_shrinks_on_a_straight_line() {
    let config = TrainConfig { pool_from: Some(PoolStart { blocks: 12, until: 0.5 }), ..config() };
    let blocks: Vec<Option<usize>> = (0..8).map(|step| config.pool_blocks_at(4, step, 8)).collect();
    assert_eq!(blocks, [Some(12), Some(10), Some(8), Some(6), None, None, None, None]);
    let after: Vec<usize> = (0..=8).map(|done| config.pool_blocks_after(4, done, 8)).collect();
    assert_eq!(after, [4, 12, 10, 8, 6, 4, 4, 4, 4]);
    assert_eq!(TrainConfig { pool_from: None, ..config }.pool_blocks_at(4, 0, 8), None);
}

#[test]
fn unknown_keys_are_refused() {
    let error = toml::from_str::<TrainConfig>("tokens = 1\nbatch = 1\nlearning_rate = 1.0\nlr = 2").unwrap_err();
    assert!(error.to_string().contains("unknown field `lr`"), "{error}");
}

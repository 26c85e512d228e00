//! Which values a configuration may hold, each alone; the module below holds them against each other.

mod fit;

use std::fmt::Display;

use super::{ConfigError, FfnConfig, ModelConfig, Residual};

/// The largest size that any single key may give.
const LARGEST: usize = 1 << 24;

/// The most numbers that one tensor may hold, so that byte counts and offsets stay far from overflow.
const LARGEST_TENSOR: usize = 1 << 48;

impl ModelConfig {
    /// Checks every value alone and against the others.
    ///
    /// # Errors
    /// The first value that no network can have, with its key and what would be right.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.check_sizes()?;
        self.check_heads()?;
        self.check_pool()?;
        self.check_floats()?;
        self.check_ffn()?;
        self.check_quantization()?;
        self.check_products()
    }

    fn check_sizes(&self) -> Result<(), ConfigError> {
        let mut sizes = vec![
            ("window", self.window),
            ("topk", self.topk),
            ("d_model", self.d_model),
            ("heads", self.heads),
            ("head_dim", self.head_dim),
            ("rope_dim", self.rope_dim),
            ("output_groups", self.output_groups),
            ("index_heads", self.index_heads),
            ("index_dim", self.index_dim),
        ];
        sizes.extend(self.vocab_size.map(|size| ("vocab_size", size)));
        sizes.extend(self.query_rank.map(|size| ("query_rank", size)));
        sizes.extend(self.output_rank.map(|size| ("output_rank", size)));
        sizes
            .extend(self.pool.into_iter().flat_map(|p| [("pool.blocks", p.blocks), ("pool.block_size", p.block_size)]));
        sizes.extend(self.yarn.map(|yarn| ("yarn.original_length", yarn.original_length)));
        match &self.ffn {
            FfnConfig::Dense { width } => sizes.push(("ffn.width", *width)),
            FfnConfig::Moe { experts, active, width, .. } => {
                sizes.extend([("ffn.experts", *experts), ("ffn.active", *active), ("ffn.width", *width)]);
            }
        }
        if let Residual::Hyper { streams } = self.residual {
            sizes.push(("residual.hyper.streams", streams));
        }
        sizes.into_iter().try_for_each(|(key, size)| check_size(key, size))
    }

    fn check_floats(&self) -> Result<(), ConfigError> {
        let mut floats = vec![
            ("rope_theta", self.rope_theta),
            ("compress_rope_theta", self.compress_rope_theta),
            ("norm_eps", self.norm_eps),
        ];
        if let Some(yarn) = self.yarn {
            floats.extend([
                ("yarn.factor", yarn.factor),
                ("yarn.beta_fast", yarn.beta_fast),
                ("yarn.beta_slow", yarn.beta_slow),
            ]);
        }
        if let FfnConfig::Moe { route_scale, swiglu_limit, .. } = &self.ffn {
            floats.push(("ffn.route_scale", *route_scale));
            floats.extend(swiglu_limit.map(|limit| ("ffn.swiglu_limit", limit)));
        }
        for (key, number) in floats {
            if !(number.is_finite() && number > 0.0) {
                return Err(value(key, number, "it must be a positive, finite number", "set it above 0"));
            }
        }
        if !self.sink_init.is_finite() {
            return Err(value("sink_init", self.sink_init, "it must be a finite number", "0 is the usual start"));
        }
        if let Some(yarn) = self.yarn
            && yarn.beta_fast <= yarn.beta_slow
        {
            return Err(value(
                "yarn.beta_fast",
                yarn.beta_fast,
                &format!("it must exceed yarn.beta_slow = {}", yarn.beta_slow),
                "32 and 1 are the usual pair",
            ));
        }
        Ok(())
    }

    /// No tensor may hold more numbers than can be counted and addressed.
    fn check_products(&self) -> Result<(), ConfigError> {
        let mut products: Vec<(&'static str, Vec<usize>)> = vec![
            ("heads", vec![self.query_rank.unwrap_or(self.d_model), self.heads, self.head_dim]),
            ("heads", vec![self.output_rank.unwrap_or(self.d_model), self.heads, self.head_dim]),
            ("head_dim", vec![self.d_model, self.head_dim]),
            ("window", vec![self.window, self.head_dim]),
            ("output_groups", vec![self.output_groups, self.output_rank.unwrap_or(1), self.d_model]),
        ];
        products.extend(self.query_rank.map(|rank| ("query_rank", vec![rank, self.d_model])));
        products.extend(self.vocab_size.map(|size| ("vocab_size", vec![size, self.d_model])));
        products.extend(self.pool.map(|pool| ("pool.blocks", vec![pool.blocks, pool.block_size])));
        if self.layers.has_indexer() {
            let rank = self.query_rank.unwrap_or(self.d_model);
            products.push(("index_heads", vec![rank, self.index_heads, self.index_dim]));
            products.push(("index_dim", vec![self.head_dim, self.index_dim]));
        }
        products.push(match self.ffn {
            FfnConfig::Dense { width } => ("ffn.width", vec![width, self.d_model]),
            FfnConfig::Moe { experts, shared, width, .. } => {
                ("ffn.width", vec![experts.saturating_add(shared), width, self.d_model])
            }
        });
        if let Residual::Hyper { streams } = self.residual {
            products.push(("residual.hyper.streams", vec![streams, streams, streams, self.d_model]));
        }
        products.into_iter().try_for_each(|(key, factors)| check_product(key, &factors))
    }
}

fn value(key: &'static str, value: impl Display, wrong: &str, right: &str) -> ConfigError {
    ConfigError::Value { key, value: format!("{value}"), wrong: wrong.into(), right: right.into() }
}

fn too_large(key: &'static str, size: usize) -> ConfigError {
    value(key, size, "it is too large", &format!("the largest size is {LARGEST}"))
}

fn check_size(key: &'static str, size: usize) -> Result<(), ConfigError> {
    let zero = match key {
        "window" => "a token must see at least itself",
        "topk" => "an address of no entries selects nothing",
        _ => "a size of 0 leaves nothing to compute with",
    };
    match size {
        0 => Err(value(key, 0, zero, &format!("set {key} to 1 or more"))),
        1..=LARGEST => Ok(()),
        _ => Err(too_large(key, size)),
    }
}

fn check_product(key: &'static str, factors: &[usize]) -> Result<(), ConfigError> {
    let product = factors.iter().try_fold(1_usize, |product, factor| product.checked_mul(*factor));
    if product.is_some_and(|product| product <= LARGEST_TENSOR) {
        return Ok(());
    }
    let shown: Vec<String> = factors.iter().map(ToString::to_string).collect();
    let shown = shown.join(" * ");
    Err(value(key, shown, "this product is too large for one tensor", &format!("keep it to {LARGEST_TENSOR} numbers")))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::ScoreFunction;
    use super::*;
    use crate::config::YarnConfig;

    /// The message that a changed small model gets.
    pub(in crate::config) fn message(change: impl FnOnce(&mut ModelConfig)) -> String {
        let mut config = ModelConfig::small().unwrap();
        change(&mut config);
        config.validate().expect_err("must be refused").to_string()
    }

    pub(in crate::config) fn accepted(change: impl FnOnce(&mut ModelConfig)) {
        let mut config = ModelConfig::small().unwrap();
        change(&mut config);
        assert_eq!(config.validate(), Ok(()));
    }

    const YARN: YarnConfig = YarnConfig { factor: 16.0, original_length: 64, beta_fast: 32.0, beta_slow: 1.0 };

    pub(in crate::config) fn moe(
        experts: usize,
        active: usize,
        route_scale: f64,
        swiglu_limit: Option<f64>,
    ) -> FfnConfig {
        FfnConfig::Moe {
            experts,
            active,
            shared: 0,
            width: 16,
            route_scale,
            swiglu_limit,
            score: ScoreFunction::default(),
        }
    }

    #[test]
    fn window_and_topk_of_zero() {
        assert_eq!(
            message(|c| c.window = 0),
            "`window = 0`: a token must see at least itself; set window to 1 or more"
        );
        assert_eq!(
            message(|c| c.topk = 0),
            "`topk = 0`: an address of no entries selects nothing; set topk to 1 or more"
        );
    }

    fn stretched(original_length: usize) -> YarnConfig {
        YarnConfig { original_length, ..YARN }
    }

    #[test]
    fn every_size_of_zero_is_refused_by_name() {
        type Change = fn(&mut ModelConfig);
        let changes: [(&str, Change); 15] = [
            ("d_model", |c| c.d_model = 0),
            ("heads", |c| c.heads = 0),
            ("head_dim", |c| c.head_dim = 0),
            ("rope_dim", |c| c.rope_dim = 0),
            ("output_groups", |c| c.output_groups = 0),
            ("index_heads", |c| c.index_heads = 0),
            ("index_dim", |c| c.index_dim = 0),
            ("vocab_size", |c| c.vocab_size = Some(0)),
            ("query_rank", |c| c.query_rank = Some(0)),
            ("output_rank", |c| c.output_rank = Some(0)),
            ("ffn.width", |c| c.ffn = FfnConfig::Dense { width: 0 }),
            ("ffn.experts", |c| c.ffn = moe(0, 0, 1.0, None)),
            ("ffn.active", |c| c.ffn = moe(4, 0, 1.0, None)),
            ("residual.hyper.streams", |c| c.residual = Residual::Hyper { streams: 0 }),
            ("yarn.original_length", |c| c.yarn = Some(stretched(0))),
        ];
        for (key, change) in changes {
            let expected = format!("`{key} = 0`: a size of 0 leaves nothing to compute with; set {key} to 1 or more");
            assert_eq!(message(change), expected);
        }
    }

    #[test]
    fn sizes_beyond_every_machine() {
        assert_eq!(
            message(|c| c.d_model = usize::MAX),
            format!("`d_model = {}`: it is too large; the largest size is 16777216", usize::MAX)
        );
        assert_eq!(
            message(|c| (c.d_model, c.heads, c.head_dim) = (LARGEST, LARGEST, LARGEST)),
            "`heads = 16777216 * 16777216 * 16777216`: this product is too large for one tensor; keep it to 281474976710656 numbers"
        );
        assert!(
            message(|c| c.ffn = FfnConfig::Moe {
                experts: LARGEST,
                active: 1,
                shared: LARGEST,
                width: LARGEST,
                route_scale: 1.0,
                swiglu_limit: None,
                score: ScoreFunction::default()
            })
            .starts_with("`ffn.width = 33554432 * 16777216 * 64`: this product is too large")
        );
        assert!(
            message(|c| c.ffn = FfnConfig::Moe {
                experts: 1,
                active: 1,
                shared: usize::MAX,
                width: 1,
                route_scale: 1.0,
                swiglu_limit: None,
                score: ScoreFunction::default()
            })
            .contains("`ffn.shared = ")
        );
    }

    #[test]
    fn floats_are_positive_and_finite() {
        let wrong = "it must be a positive, finite number; set it above 0";
        assert_eq!(message(|c| c.rope_theta = 0.0), format!("`rope_theta = 0`: {wrong}"));
        assert_eq!(message(|c| c.compress_rope_theta = f64::NAN), format!("`compress_rope_theta = NaN`: {wrong}"));
        assert_eq!(message(|c| c.norm_eps = -1e-6), format!("`norm_eps = -0.000001`: {wrong}"));
        assert_eq!(
            message(|c| c.yarn = Some(YarnConfig { factor: f64::INFINITY, ..YARN })),
            format!("`yarn.factor = inf`: {wrong}")
        );
        assert_eq!(message(|c| c.ffn = moe(4, 2, 0.0, None)), format!("`ffn.route_scale = 0`: {wrong}"));
        assert_eq!(message(|c| c.ffn = moe(4, 2, 1.0, Some(-1.0))), format!("`ffn.swiglu_limit = -1`: {wrong}"));
        assert_eq!(
            message(|c| c.sink_init = f64::INFINITY),
            "`sink_init = inf`: it must be a finite number; 0 is the usual start"
        );
        assert_eq!(
            message(|c| c.yarn = Some(YarnConfig { beta_fast: 1.0, ..YARN })),
            "`yarn.beta_fast = 1`: it must exceed yarn.beta_slow = 1; 32 and 1 are the usual pair"
        );
        accepted(|c| (c.sink_init, c.yarn) = (-4.0, Some(YARN)));
    }
}

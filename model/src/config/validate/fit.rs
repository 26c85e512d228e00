//! How the sizes must fit each other: heads, pool, experts and quantizer groups.

use super::{LARGEST, too_large, value};
use crate::config::{ConfigError, FfnConfig, ModelConfig, QuantFormat, QuantizationConfig, Values};

impl ModelConfig {
    pub(super) fn check_heads(&self) -> Result<(), ConfigError> {
        let Self { head_dim, rope_dim, heads, output_groups, .. } = *self;
        if !head_dim.is_multiple_of(2) {
            return Err(value(
                "head_dim",
                head_dim,
                "a head's channels turn in pairs",
                "set head_dim to an even number",
            ));
        }
        if !rope_dim.is_multiple_of(2) {
            return Err(value("rope_dim", rope_dim, "rotary channels turn in pairs", "set rope_dim to an even number"));
        }
        if rope_dim > head_dim {
            return Err(value(
                "rope_dim",
                rope_dim,
                &format!("the rotary part is larger than the head it belongs to (head_dim = {head_dim})"),
                &format!("set rope_dim to at most {head_dim}, or enlarge head_dim"),
            ));
        }
        if self.layers.has_indexer() && rope_dim > self.index_dim {
            return Err(value(
                "rope_dim",
                rope_dim,
                &format!(
                    "indexer vectors carry the same rotary part but have only index_dim = {} channels",
                    self.index_dim
                ),
                &format!("set rope_dim to at most {}, or enlarge index_dim", self.index_dim),
            ));
        }
        if !heads.is_multiple_of(output_groups) {
            return Err(value(
                "output_groups",
                output_groups,
                &format!("the {heads} heads do not split into {output_groups} equal groups"),
                &format!("choose a divisor of {heads}"),
            ));
        }
        if output_groups > 1 && self.output_rank.is_none() {
            return Err(ConfigError::Missing {
                key: "output_rank",
                wrong: format!("{output_groups} output groups need a rank each"),
                right: "set output_rank, or output_groups = 1 for one matrix".into(),
            });
        }
        Ok(())
    }

    pub(super) fn check_pool(&self) -> Result<(), ConfigError> {
        let Some(pool) = self.pool else {
            if self.layers.has_pool() {
                return Err(ConfigError::Missing {
                    key: "pool",
                    wrong: "the mix has a `full+pool` layer, which needs the pool's size".into(),
                    right: "set pool = { blocks = ..., block_size = ... }, or write `full` without `+pool`".into(),
                });
            }
            return Ok(());
        };
        let shown = format!("{{ blocks = {}, block_size = {} }}", pool.blocks, pool.block_size);
        if !self.layers.has_pool() {
            return Err(value(
                "pool",
                shown,
                "no layer of the mix builds a pool, so this would have no effect",
                "write `full+pool` in layers, or remove pool",
            ));
        }
        if pool.entries() < self.topk {
            return Err(value(
                "pool",
                shown,
                &format!(
                    "the pool holds {} entries but topk = {}, so a `reindex` layer could never fill its Top-K",
                    pool.entries(),
                    self.topk
                ),
                &format!("make blocks * block_size at least {}, or lower topk", self.topk),
            ));
        }
        Ok(())
    }

    pub(super) fn check_ffn(&self) -> Result<(), ConfigError> {
        let FfnConfig::Moe { experts, active, shared, .. } = self.ffn else {
            return Ok(());
        };
        if active > experts {
            return Err(value(
                "ffn.active",
                active,
                &format!("a token cannot pass through more than the {experts} routed experts"),
                &format!("set ffn.active to at most {experts}"),
            ));
        }
        if shared > LARGEST {
            return Err(too_large("ffn.shared", shared));
        }
        Ok(())
    }

    /// Only formats that some layer of the mix will use are held against the dimensions.
    pub(super) fn check_quantization(&self) -> Result<(), ConfigError> {
        let QuantizationConfig { main_kv, index, window } = self.quantization;
        let latent = QuantizationConfig::latent_group;
        if self.layers.layers().iter().any(|layer| layer.mode.takes_ratio()) {
            check_group("quantization.main_kv", main_kv, latent(main_kv), "head_dim", self.head_dim)?;
        }
        if self.layers.has_indexer() {
            let group = QuantizationConfig::index_group(index);
            check_group("quantization.index", index, group, "index_dim", self.index_dim)?;
        }
        check_group("quantization.window", window, latent(window), "head_dim", self.head_dim)?;
        for (key, format) in [("quantization.main_kv", main_kv), ("quantization.window", window)] {
            if self.values == Values::Unrotated && format != QuantFormat::None {
                return Err(value(
                    key,
                    format!("\"{}\"", format.name()),
                    "with values = \"unrotated\" key and value are two vectors, and number formats are defined for one",
                    "set it to \"none\", or values to \"rotated\"",
                ));
            }
        }
        Ok(())
    }
}

fn check_group(
    key: &'static str,
    format: QuantFormat,
    group: usize,
    dim_key: &str,
    dim: usize,
) -> Result<(), ConfigError> {
    if dim.is_multiple_of(group) {
        return Ok(());
    }
    let name = format!("\"{}\"", format.name());
    let wrong = format!("{group} numbers share a scale, which does not divide {dim_key} = {dim}");
    Err(value(key, name, &wrong, &format!("make {dim_key} a multiple of {group}, or choose another format")))
}

#[cfg(test)]
mod tests {
    use super::super::tests::{accepted, message, moe};
    use super::*;
    use crate::config::PoolConfig;

    #[test]
    fn heads_and_rotary_parts() {
        assert_eq!(
            message(|c| c.head_dim = 33),
            "`head_dim = 33`: a head's channels turn in pairs; set head_dim to an even number"
        );
        assert_eq!(
            message(|c| c.rope_dim = 7),
            "`rope_dim = 7`: rotary channels turn in pairs; set rope_dim to an even number"
        );
        assert_eq!(
            message(|c| c.rope_dim = 34),
            "`rope_dim = 34`: the rotary part is larger than the head it belongs to (head_dim = 32); \
             set rope_dim to at most 32, or enlarge head_dim"
        );
        assert_eq!(
            message(|c| c.rope_dim = 18),
            "`rope_dim = 18`: indexer vectors carry the same rotary part but have only index_dim = 16 channels; \
             set rope_dim to at most 16, or enlarge index_dim"
        );
        accepted(|c| {
            c.layers = "swa dense".parse().unwrap();
            c.rope_dim = 18;
        });
    }

    #[test]
    fn output_groups() {
        assert_eq!(
            message(|c| c.output_groups = 3),
            "`output_groups = 3`: the 4 heads do not split into 3 equal groups; choose a divisor of 4"
        );
        assert_eq!(
            message(|c| c.output_groups = 2),
            "`output_rank` is missing: 2 output groups need a rank each; set output_rank, or output_groups = 1 for one matrix"
        );
        accepted(|c| (c.output_groups, c.output_rank) = (2, Some(8)));
    }

    #[test]
    fn pool_and_mix_agree() {
        let pool = |blocks, block_size| Some(PoolConfig { blocks, block_size });
        let pooled = || "full+pool reindex".parse().unwrap();
        assert_eq!(
            message(|c| c.layers = pooled()),
            "`pool` is missing: the mix has a `full+pool` layer, which needs the pool's size; \
             set pool = { blocks = ..., block_size = ... }, or write `full` without `+pool`"
        );
        assert_eq!(
            message(|c| c.pool = pool(4, 4)),
            "`pool = { blocks = 4, block_size = 4 }`: no layer of the mix builds a pool, so this would have no effect; \
             write `full+pool` in layers, or remove pool"
        );
        assert_eq!(
            message(|c| (c.layers, c.pool) = (pooled(), pool(3, 2))),
            "`pool = { blocks = 3, block_size = 2 }`: the pool holds 6 entries but topk = 8, so a `reindex` layer could never \
             fill its Top-K; make blocks * block_size at least 8, or lower topk"
        );
        assert!(message(|c| (c.layers, c.pool) = (pooled(), pool(0, 8))).starts_with("`pool.blocks = 0`"));
        assert!(message(|c| (c.layers, c.pool) = (pooled(), pool(8, 0))).starts_with("`pool.block_size = 0`"));
        accepted(|c| (c.layers, c.pool) = (pooled(), pool(4, 2)));
    }

    #[test]
    fn more_active_than_routed_experts() {
        assert_eq!(
            message(|c| c.ffn = moe(4, 5, 1.0, None)),
            "`ffn.active = 5`: a token cannot pass through more than the 4 routed experts; set ffn.active to at most 4"
        );
    }

    #[test]
    fn unrotated_values_are_not_quantized() {
        for key in ["main_kv", "window"] {
            let told = message(|c| {
                c.values = Values::Unrotated;
                let format = match key {
                    "main_kv" => &mut c.quantization.main_kv,
                    _ => &mut c.quantization.window,
                };
                *format = QuantFormat::Fp8;
            });
            assert_eq!(
                told,
                format!(
                    "`quantization.{key} = \"fp8\"`: with values = \"unrotated\" key and value are two vectors, and number formats \
                     are defined for one; set it to \"none\", or values to \"rotated\""
                )
            );
        }
        accepted(|c| c.values = Values::Unrotated);
        accepted(|c| (c.values, c.index_dim, c.quantization.index) = (Values::Unrotated, 32, QuantFormat::Fp4));
    }

    #[test]
    fn quantizer_groups_divide_the_dimensions() {
        assert_eq!(
            message(|c| (c.head_dim, c.quantization.main_kv) = (40, QuantFormat::Fp4)),
            "`quantization.main_kv = \"fp4\"`: 16 numbers share a scale, which does not divide head_dim = 40; \
             make head_dim a multiple of 16, or choose another format"
        );
        assert_eq!(
            message(|c| c.quantization.index = QuantFormat::Fp4),
            "`quantization.index = \"fp4\"`: 32 numbers share a scale, which does not divide index_dim = 16; \
             make index_dim a multiple of 32, or choose another format"
        );
        assert_eq!(
            message(|c| (c.head_dim, c.quantization.window) = (48, QuantFormat::Fp8)),
            "`quantization.window = \"fp8\"`: 32 numbers share a scale, which does not divide head_dim = 48; \
             make head_dim a multiple of 32, or choose another format"
        );
        accepted(|c| {
            c.layers = "swa*2".parse().unwrap();
            c.quantization.index = QuantFormat::Fp4;
        });
    }

    /// Every format of every part against dimensions that its group divides and those next to them.
    #[test]
    fn each_part_and_format_needs_whole_groups() {
        type Part = fn(&mut ModelConfig) -> (&mut QuantFormat, &mut usize);
        let parts: [(&str, &str, usize, Part); 3] = [
            ("main_kv", "head_dim", 16, |c| (&mut c.quantization.main_kv, &mut c.head_dim)),
            ("index", "index_dim", 32, |c| (&mut c.quantization.index, &mut c.index_dim)),
            ("window", "head_dim", 16, |c| (&mut c.quantization.window, &mut c.head_dim)),
        ];
        for (part, dim_key, fp4_group, of) in parts {
            for (format, name, group) in [(QuantFormat::Fp4, "fp4", fp4_group), (QuantFormat::Fp8, "fp8", 32)] {
                let set = |c: &mut ModelConfig, size: usize| {
                    // Small enough for every size below.
                    c.rope_dim = 4;
                    let (quantized, dim) = of(c);
                    (*quantized, *dim) = (format, size);
                };
                for size in [group - 2, group + 2, group / 2, group + group / 2] {
                    assert_eq!(
                        message(|c| set(c, size)),
                        format!(
                            "`quantization.{part} = \"{name}\"`: {group} numbers share a scale, which does not divide \
                             {dim_key} = {size}; make {dim_key} a multiple of {group}, or choose another format"
                        )
                    );
                }
                for size in [group, 3 * group] {
                    accepted(|c| set(c, size));
                }
            }
        }
    }
}

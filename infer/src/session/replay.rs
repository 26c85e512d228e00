//! Bounded replay (report 3.2.2): after a long prompt, or after caches that were kept without their windows, layers see the last tokens
//! alone, as if nothing had been before them.
//!
//! A replay that begins at s lets the query at i read the window keys `max(s, i - W + 1) .. i`. Entries are not touched by it: every
//! query selects among all that it sees. In its *decoder* form a prompt goes through the encoder (the layers below the last `full`) whole,
//! that `full` stores its entries of all of it, and the layers from there on see the last tokens alone. In its *encoder* form all layers'
//! windows are made anew from the last tokens, while all entries are there. Both are exact where the tokens that are replayed cover what
//! the windows of the layers one above the other reach, `1 + layers (W - 1)` tokens, and approximate otherwise.

use std::ops::Range;

use burn::tensor::Tensor;
use csa2_model::config::ModelConfig;
use csa2_model::mix::Mode;

use super::Session;
use crate::SessionError;
use crate::cache::{Piece, Replay};

/// What a prompt gave whose end alone went through the decoder.
#[derive(Clone, Debug)]
pub struct Bounded {
    /// Logits `[given rows, vocabulary]` behind the last token of every row.
    pub logits: Tensor<2>,
    /// Tokens of every row that the decoder's layers did not see.
    pub left_out: Vec<usize>,
}

/// The layers that a decoder replay leaves out for most of a prompt: the last `full` and all above it.
///
/// # Errors
/// When there is no such split: no layer is `full`, or one in the decoder keeps more of every token than a window.
pub fn decoder(config: &ModelConfig) -> Result<Range<usize>, SessionError> {
    let mix = &config.layers;
    let Some(start) = mix.decoder_start() else {
        return Err(SessionError::Replay(format!(
            "no layer of `{mix}` is `full`, so it has no decoder that could be left out"
        )));
    };
    let keeps = mix.layers()[start + 1..].iter().find(|layer| matches!(layer.mode, Mode::Dense | Mode::Stale));
    if let Some(layer) = keeps {
        return Err(SessionError::Replay(format!(
            "layer {} of `{mix}`, in the decoder (layers {start} to {}), is `{}`: it keeps something of every token, so none can be left out",
            layer.index,
            mix.len() - 1,
            layer.mode
        )));
    }
    Ok(start..mix.len())
}

/// Tokens that a replay through these layers needs to be exact: what their windows reach, one above the other.
pub fn exact_replay(config: &ModelConfig, layers: &Range<usize>) -> usize {
    1 + layers.len() * (config.window - 1)
}

impl Session {
    /// As [`extend`](Self::extend), but the decoder's layers see the last `replay` tokens of every row alone (the decoder form of bounded
    /// replay). A row that gets no more than these is read whole.
    ///
    /// # Errors
    /// As [`extend`](Self::extend), or when the mix has no [`decoder`], or `replay` is less than the window: windows would not be whole
    /// behind it.
    pub fn extend_bounded(&mut self, given: &[(usize, &[i32])], replay: usize) -> Result<Bounded, SessionError> {
        self.check(given)?;
        let layers = decoder(&self.config)?;
        let window = self.config.window;
        if replay < window {
            return Err(SessionError::Replay(format!(
                "a replay of {replay} tokens is shorter than the window of {window}, which would not be whole behind it; replay at least {window}"
            )));
        }
        let (mut logits, mut left_out) = (Vec::new(), Vec::new());
        for &(row, tokens) in given {
            let start = self.lengths()[row];
            let since = (start + tokens.len()).saturating_sub(replay).max(start);
            let (encoded, replayed) = tokens.split_at(since - start);
            for part in encoded.chunks(self.options.pass.max(1)) {
                let start = self.lengths()[row];
                let piece = Piece { row, positions: start..start + part.len() };
                self.encode(layers.start, &piece, part.to_vec())?;
            }
            let replay = (since > start).then_some(Replay { first_layer: layers.start, since, keeps_entries: false });
            let x = self.replayed(row, since, replayed, replay.as_ref())?;
            logits.extend(x);
            left_out.push(since - start);
        }
        Ok(Bounded { logits: self.model.read(Tensor::cat(logits, 1)).squeeze_dim(0), left_out })
    }

    /// Makes the windows of these rows anew from their last tokens (the encoder form of bounded replay): of rows that were loaded
    /// without windows, or any other. Entries stay as they are.
    ///
    /// # Errors
    /// When a row does not exist or is given twice, a token does not exist, a layer is `dense`, or a row is given fewer tokens than its
    /// windows hold or more than it has.
    pub fn rebuild_windows(&mut self, given: &[(usize, &[i32])]) -> Result<(), SessionError> {
        self.check_tokens(given)?;
        let mix = &self.config.layers;
        if let Some(layer) = mix.layers().iter().find(|layer| layer.mode == Mode::Dense) {
            return Err(SessionError::Replay(format!(
                "layer {} of `{mix}` is `dense`: its window holds every token, so it cannot be made of the last ones",
                layer.index
            )));
        }
        for &(row, tokens) in given {
            let length = self.lengths()[row];
            let (least, count) = (self.config.window.min(length), tokens.len());
            if !(least..=length).contains(&count) {
                return Err(SessionError::Replay(format!(
                    "row {row}: {count} tokens cannot make its windows anew; give its last {least} tokens, or more, up to all {length}"
                )));
            }
        }
        for &(row, tokens) in given {
            let since = self.lengths()[row] - tokens.len();
            self.caches.clear_windows(row);
            let replay = Replay { first_layer: 0, since, keeps_entries: true };
            self.replayed(row, since, tokens, Some(&replay))?;
            self.without_windows[row] = false;
        }
        Ok(())
    }

    /// Tokens of a row from position `since` on, in passes; what the head reads behind the last `[1, 1, d_model]`, if there is one.
    fn replayed(
        &mut self,
        row: usize,
        since: usize,
        tokens: &[i32],
        replay: Option<&Replay>,
    ) -> Result<Option<Tensor<3>>, SessionError> {
        let (mut last, mut start) = (None, since);
        for part in tokens.chunks(self.options.pass.max(1)) {
            let piece = Piece { row, positions: start..start + part.len() };
            start = piece.positions.end;
            let x = self.pass_replayed(&[piece], part.to_vec(), replay, |_, _| {})?;
            last = Some(x.narrow(1, part.len() - 1, 1));
        }
        Ok(last)
    }
}

//! Decoding: one token of every row at a time, whatever the rows' lengths.

use std::time::{Duration, Instant};

use burn::tensor::Tensor;

use super::Session;
use crate::SessionError;
use crate::cache::Piece;

impl Session {
    /// Continues every row by one token: logits `[rows, vocabulary]` behind it.
    ///
    /// # Errors
    /// When there is not one token for each row, a row becomes too long, or a token does not exist; or when the device cannot be read, which
    /// ends the session.
    pub fn decode(&mut self, tokens: &[i32]) -> Result<Tensor<2>, SessionError> {
        self.decode_watched(tokens, |_| {})
    }

    /// As [`decode`](Self::decode), and how long each layer took, first layer first: on the processor, where what a layer has
    /// been asked for is done when it returns.
    ///
    /// # Errors
    /// As [`decode`](Self::decode).
    pub fn decode_timed(&mut self, tokens: &[i32]) -> Result<(Tensor<2>, Vec<Duration>), SessionError> {
        let mut times = Vec::with_capacity(self.config.layers.len());
        let mut last = Instant::now();
        let logits = self.decode_watched(tokens, |_| {
            let now = Instant::now();
            times.push(now - std::mem::replace(&mut last, now));
        })?;
        Ok((logits, times))
    }

    fn decode_watched(&mut self, tokens: &[i32], mut watch: impl FnMut(usize)) -> Result<Tensor<2>, SessionError> {
        let rows = self.lengths().len();
        if tokens.len() != rows {
            return Err(SessionError::Rows { given: tokens.len(), rows });
        }
        let given: Vec<(usize, &[i32])> = tokens.chunks(1).enumerate().collect();
        self.check(&given)?;
        let piece = |(row, &length): (usize, &usize)| Piece { row, positions: length..length + 1 };
        let pieces: Vec<Piece> = self.lengths().iter().enumerate().map(piece).collect();
        let x = self.pass(&pieces, tokens.to_vec(), |layer, _| watch(layer))?;
        Ok(self.model.read(x).squeeze_dim(0))
    }
}

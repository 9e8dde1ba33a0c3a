// Adafactor: updates by the root of second moments that are kept by rows and columns of matrices. Source: Shazeer and
// Stern, "Adafactor: Adaptive Learning Rates with Sublinear Memory Cost", algorithm 4; the same arithmetic as
// transformers' Adafactor.
#ifndef TACC_KERNELS_CONTRACT_ADAFACTOR_H_
#define TACC_KERNELS_CONTRACT_ADAFACTOR_H_

#include "kernels/tensor.h"

namespace tacc::kernels {

// A rank's part of a stack of matrices [matrices, rows, columns] that lies as a tensor of other dims with the same
// elements in the same order. What is not factored is one matrix of one column.
struct MatrixPart {
  Dims logical;  // of that tensor, whole
  Dims begin;    // where the part begins in it
  Dims bounds;   // of the part, without padding
  int64_t rows = 1, columns = 1;
  bool is_factored = true;
};

// Second moments: row [matrices, rows] and column [matrices, columns]; column without data where not factored.
struct SecondMoments {
  TensorView row, column;
};

// Each rank 0.
struct AdafactorScalars {
  TensorView learning_rate;
  TensorView grad_scale;  // the gradient is multiplied by it
  TensorView apply;       // 0: the weight stays as it is, to the bit
  TensorView squares;     // of all parts: what UpdateSquares gives
};

struct AdafactorParameters {
  double clip_threshold = 1;
  double weight_decay = 0;  // decoupled
};

// g: f32 or f64, as all moments and sums. With u = grad_scale g / sqrt(row column / mean(row)) the update of an element
// (not factored: / sqrt(row)).
struct AdafactorKernels {
  // sums: over the part, by row and by column, of (grad_scale g)^2 + epsilon.
  void (&SquareSums)(const TensorView& g, const MatrixPart& part, const TensorView& grad_scale, double epsilon,
                     const SecondMoments& sums);
  // y[] = sum over the part of u^2.
  void (&UpdateSquares)(const TensorView& g, const MatrixPart& part, const TensorView& grad_scale,
                        const SecondMoments& moments, const TensorView& y);
  // new_w = w - learning_rate (weight_decay w + u / max(1, rms / clip_threshold)), with rms that of u over the whole
  // tensor. new_w may be w. copy: new_w converted to its dtype, or without data.
  void (&Update)(const TensorView& w, const TensorView& g, const MatrixPart& part, const SecondMoments& moments,
                 const AdafactorScalars& scalars, const AdafactorParameters& parameters, const TensorView& new_w,
                 const TensorView& copy);
};

}  // namespace tacc::kernels

#endif  // TACC_KERNELS_CONTRACT_ADAFACTOR_H_

// The pointwise and whole-array loops of one instruction set; see loops.h.
#ifndef TACC_KERNELS_CPU_SIMD_POINTWISE_H_
#define TACC_KERNELS_CPU_SIMD_POINTWISE_H_

#include "kernels/cpu/simd/loops.h"

namespace tacc::kernels::simd::TACC_ISA {

void Unary(UnaryOp op, double p0, double p1, In x, Out y, int64_t begin, int64_t end);
void UnaryGrad(UnaryGradOp op, double p0, double p1, In x, In dy, Out dx, int64_t begin, int64_t end);
void Binary(BinaryOp op, In a, In b, int64_t b_period, Out y, int64_t begin, int64_t end);
void Swiglu(In gate, In up, Out y, int64_t begin, int64_t end);
void SwigluGrad(In gate, In up, In dy, Out dgate, Out dup, int64_t begin, int64_t end);
double Sum(In x, int64_t begin, int64_t end);
double SumSquares(In x, int64_t begin, int64_t end);
double Max(In x, int64_t begin, int64_t end);
bool IsFinite(In x, int64_t begin, int64_t end);
void AccumulateF64(double* acc, In x, int64_t offset, int64_t n);
void AccumulateF32(float* acc, In x, int64_t offset, int64_t n);
void AccumulateMax(double* acc, In x, int64_t offset, int64_t n);
void Dropout(const DropoutRun& run);

}  // namespace tacc::kernels::simd::TACC_ISA

#endif  // TACC_KERNELS_CPU_SIMD_POINTWISE_H_

#include "kernels/contract/shape.h"

#include <cstring>

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/views.h"

namespace tacc::kernels::cpu {
namespace {

constexpr int64_t kGrainBytes = 1 << 16;

// A copy with dims of extent 1 dropped and dims that are contiguous on both sides merged.
struct Copy {
  Dims dims;
  Strides from, to;
};

Copy Normalize(const Dims& dims, const Strides& from, const Strides& to) {
  int64_t extents[Dims::kMaxRank], from_strides[Dims::kMaxRank], to_strides[Dims::kMaxRank];
  int rank = 0;
  for (int i = 0; i < dims.rank(); ++i) {
    if (dims[i] == 1) continue;
    if (rank > 0 && from_strides[rank - 1] == from[i] * dims[i] && to_strides[rank - 1] == to[i] * dims[i]) {
      extents[rank - 1] *= dims[i];
      from_strides[rank - 1] = from[i];
      to_strides[rank - 1] = to[i];
      continue;
    }
    extents[rank] = dims[i];
    from_strides[rank] = from[i];
    to_strides[rank] = to[i];
    ++rank;
  }
  return {Dims(extents, extents + rank), Strides(from_strides, from_strides + rank),
          Strides(to_strides, to_strides + rank)};
}

// Offsets of the index-th element of the first `rank` dims.
void Offsets(const Copy& copy, int rank, int64_t index, int64_t* from, int64_t* to) {
  *from = 0;
  *to = 0;
  for (int i = rank - 1; i >= 0; --i) {
    const int64_t position = index % copy.dims[i];
    index /= copy.dims[i];
    *from += position * copy.from[i];
    *to += position * copy.to[i];
  }
}

template <typename T>
void CopyRow(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t n) {
  if (from_stride == 1 && to_stride == 1) {
    std::memcpy(to, from, n * sizeof(T));
  } else if (from_stride == 0 && to_stride == 1) {
    const T value = *from;
    for (int64_t i = 0; i < n; ++i) to[i] = value;
  } else {
    for (int64_t i = 0; i < n; ++i) to[i * to_stride] = from[i * from_stride];
  }
}

// Copies dims[0, rank - 2) x a plane whose two dims have unit stride on different sides, in tiles that fit L1.
template <typename T>
void CopyTransposed(const Copy& copy, const T* from, T* to) {
  constexpr int64_t kTile = 32;
  const int rank = copy.dims.rank();
  const int64_t rows = copy.dims[rank - 2], columns = copy.dims[rank - 1];
  const int64_t row_tiles = (rows + kTile - 1) / kTile;
  ParallelFor(copy.dims.Product(0, rank - 2) * row_tiles, 1 + kGrainBytes / (kTile * columns * int64_t{sizeof(T)}),
              [&](int64_t begin, int64_t end) {
                for (int64_t item = begin; item < end; ++item) {
                  int64_t from_offset, to_offset;
                  Offsets(copy, rank - 2, item / row_tiles, &from_offset, &to_offset);
                  const int64_t row0 = item % row_tiles * kTile, row1 = row0 + kTile < rows ? row0 + kTile : rows;
                  for (int64_t column0 = 0; column0 < columns; column0 += kTile) {
                    const int64_t column1 = column0 + kTile < columns ? column0 + kTile : columns;
                    for (int64_t r = row0; r < row1; ++r) {
                      const T* source = from + from_offset + r * copy.from[rank - 2];
                      T* target = to + to_offset + r * copy.to[rank - 2];
                      for (int64_t c = column0; c < column1; ++c) {
                        target[c * copy.to[rank - 1]] = source[c * copy.from[rank - 1]];
                      }
                    }
                  }
                }
              });
}

template <typename T>
void CopyElements(Copy copy, const void* from_data, void* to_data) {
  const T* from = static_cast<const T*>(from_data);
  T* to = static_cast<T*>(to_data);
  const int rank = copy.dims.rank();
  if (rank == 0) {
    *to = *from;
    return;
  }
  if (rank >= 2 && copy.from[rank - 1] > 1 && copy.to[rank - 1] == 1) {
    // If another dim is dense in `from`, bring it next to the last one.
    for (int i = 0; i < rank - 1; ++i) {
      if (copy.from[i] != 1) continue;
      for (int j = i; j < rank - 2; ++j) {
        std::swap(copy.dims[j], copy.dims[j + 1]);
        std::swap(copy.from[j], copy.from[j + 1]);
        std::swap(copy.to[j], copy.to[j + 1]);
      }
      return CopyTransposed(copy, from, to);
    }
  }
  const int64_t n = copy.dims[rank - 1];
  if (rank == 1 && copy.from[0] == 1 && copy.to[0] == 1) return CopyBytes(from, to, n * sizeof(T));
  ParallelFor(copy.dims.Product(0, rank - 1), 1 + kGrainBytes / (n * int64_t{sizeof(T)}),
              [&](int64_t begin, int64_t end) {
                for (int64_t row = begin; row < end; ++row) {
                  int64_t from_offset, to_offset;
                  Offsets(copy, rank - 1, row, &from_offset, &to_offset);
                  CopyRow(from + from_offset, copy.from[rank - 1], to + to_offset, copy.to[rank - 1], n);
                }
              });
}

const void* At(const TensorView& x, int64_t offset) { return x.as<char>() + offset * SizeOf(x.dtype); }
void* MutableAt(const TensorView& x, int64_t offset) { return x.as<char>() + offset * SizeOf(x.dtype); }

void StridedCopy(const Dims& dims, int64_t element_bytes, const void* from, const Strides& from_strides, void* to,
                 const Strides& to_strides) {
  TACC_KERNEL_CHECK(from_strides.rank() == dims.rank() && to_strides.rank() == dims.rank());
  if (dims.Product() == 0) return;
  const Copy copy = Normalize(dims, from_strides, to_strides);
  switch (element_bytes) {
    case 1:
      return CopyElements<uint8_t>(copy, from, to);
    case 2:
      return CopyElements<uint16_t>(copy, from, to);
    case 4:
      return CopyElements<uint32_t>(copy, from, to);
    case 8:
      return CopyElements<uint64_t>(copy, from, to);
    default:
      TACC_KERNEL_CHECK(element_bytes == 1 || element_bytes == 2 || element_bytes == 4 || element_bytes == 8);
  }
}

void Transpose(const TensorView& x, const Dims& perm, const TensorView& y) {
  TACC_KERNEL_CHECK(perm.rank() == x.dims.rank() && y.dims.rank() == x.dims.rank() && x.dtype == y.dtype);
  const Strides dense = DenseStrides(x.dims);
  Strides from = dense;
  for (int i = 0; i < perm.rank(); ++i) {
    TACC_KERNEL_CHECK(y.dims[i] == x.dims[static_cast<int>(perm[i])]);
    from[i] = dense[static_cast<int>(perm[i])];
  }
  StridedCopy(y.dims, SizeOf(x.dtype), x.data, from, y.data, DenseStrides(y.dims));
}

void Slice(const TensorView& x, int dim, int64_t start, const TensorView& y) {
  TACC_KERNEL_CHECK(x.dtype == y.dtype && dim < x.dims.rank() && start + y.dims[dim] <= x.dims[dim]);
  const Strides from = DenseStrides(x.dims);
  StridedCopy(y.dims, SizeOf(x.dtype), At(x, start * from[dim]), from, y.data, DenseStrides(y.dims));
}

void Concat(const std::vector<TensorView>& xs, int dim, const TensorView& y) {
  const Strides to = DenseStrides(y.dims);
  int64_t position = 0;
  for (const TensorView& x : xs) {
    TACC_KERNEL_CHECK(x.dtype == y.dtype && dim < x.dims.rank() && position + x.dims[dim] <= y.dims[dim]);
    StridedCopy(x.dims, SizeOf(x.dtype), x.data, DenseStrides(x.dims), MutableAt(y, position * to[dim]), to);
    position += x.dims[dim];
  }
  TACC_KERNEL_CHECK(position == y.dims[dim]);
}

void Pad(const TensorView& x, int dim, int64_t low, const TensorView& y) {
  TACC_KERNEL_CHECK(x.dtype == y.dtype && dim < x.dims.rank() && low >= 0 && low + x.dims[dim] <= y.dims[dim]);
  const Strides to = DenseStrides(y.dims);
  const int64_t outer = y.dims.Product(0, dim), row_bytes = to[dim] * SizeOf(y.dtype);
  const int64_t high = y.dims[dim] - low - x.dims[dim];
  for (int64_t i = 0; i < outer; ++i) {
    char* row = y.as<char>() + i * y.dims[dim] * row_bytes;
    std::memset(row, 0, low * row_bytes);
    std::memset(row + (low + x.dims[dim]) * row_bytes, 0, high * row_bytes);
  }
  StridedCopy(x.dims, SizeOf(x.dtype), x.data, DenseStrides(x.dims), MutableAt(y, low * to[dim]), to);
}

void Broadcast(const TensorView& x, const Dims& dims, const TensorView& y) {
  TACC_KERNEL_CHECK(dims.rank() == x.dims.rank() && x.dtype == y.dtype);
  const Strides dense = DenseStrides(x.dims);
  Strides from = y.dims;
  for (int i = 0; i < from.rank(); ++i) from[i] = 0;
  for (int i = 0; i < dims.rank(); ++i) {
    TACC_KERNEL_CHECK(y.dims[static_cast<int>(dims[i])] == x.dims[i]);
    from[static_cast<int>(dims[i])] = dense[i];
  }
  StridedCopy(y.dims, SizeOf(x.dtype), x.data, from, y.data, DenseStrides(y.dims));
}

void MaskPadding(const TensorView& x, const Dims& bounds) {
  TACC_KERNEL_CHECK(bounds.rank() == x.dims.rank());
  // For each dim that is cut: the tail of every row of that dim is one dense run.
  for (int dim = 0; dim < bounds.rank(); ++dim) {
    if (bounds[dim] >= x.dims[dim]) continue;
    const int64_t inner = x.dims.Product(dim + 1, x.dims.rank()) * SizeOf(x.dtype);
    const int64_t row = x.dims[dim] * inner, start = bounds[dim] * inner;
    const int64_t rows = x.dims.Product(0, dim);
    ParallelFor(rows, 1 + kGrainBytes / (row - start + 1), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) std::memset(x.as<char>() + i * row + start, 0, row - start);
    });
  }
}

}  // namespace

const ShapeKernels kShape = {
    .CopyBytes = CopyBytes,
    .Transpose = Transpose,
    .Slice = Slice,
    .Concat = Concat,
    .Pad = Pad,
    .Broadcast = Broadcast,
    .MaskPadding = MaskPadding,
};

}  // namespace tacc::kernels::cpu

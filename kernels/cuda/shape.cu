#include <algorithm>
#include <utility>

#include "kernels/contract/shape.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/launch/strided.h"

namespace tacc::kernels::cuda {
namespace {

// A copy in units of some bytes, dims of extent 1 dropped and dims merged that are contiguous on both sides. `from` may
// be null: zeros.
struct Copy {
  Dims dims;
  Strides from_strides, to_strides;
  const void* from;
  void* to;
  int64_t unit;
};

Copy Merged(const Dims& dims, int64_t unit, const void* from, const Strides& from_strides, void* to,
            const Strides& to_strides) {
  Copy copy{.from = from, .to = to, .unit = unit};
  for (int i = 0; i < dims.rank(); ++i) {
    if (dims[i] == 1) continue;
    const int last = copy.dims.rank() - 1;
    if (last >= 0 && copy.from_strides[last] == from_strides[i] * dims[i] &&
        copy.to_strides[last] == to_strides[i] * dims[i]) {
      copy.dims[last] *= dims[i];
      copy.from_strides[last] = from_strides[i];
      copy.to_strides[last] = to_strides[i];
      continue;
    }
    copy.dims.push_back(dims[i]);
    copy.from_strides.push_back(from_strides[i]);
    copy.to_strides.push_back(to_strides[i]);
  }
  return copy;
}

// Doubles the unit while both sides are made of such units.
void Widen(Copy& copy) {
  const int last = copy.dims.rank() - 1;
  if (last < 0 || copy.from_strides[last] != 1 || copy.to_strides[last] != 1) return;
  const auto fits = [&](int64_t bytes) {
    if ((reinterpret_cast<uintptr_t>(copy.from) | reinterpret_cast<uintptr_t>(copy.to)) % bytes != 0) return false;
    if (copy.dims[last] % 2 != 0) return false;
    for (int i = 0; i < last; ++i) {
      if (copy.from_strides[i] % 2 != 0 || copy.to_strides[i] % 2 != 0) return false;
    }
    return true;
  };
  while (copy.unit < 16 && fits(2 * copy.unit)) {
    copy.unit *= 2;
    copy.dims[last] /= 2;
    for (int i = 0; i < last; ++i) {
      copy.from_strides[i] /= 2;
      copy.to_strides[i] /= 2;
    }
  }
}

template <typename U>
struct CopyUnit {
  const U* from;  // null: zeros
  U* to;
  Strided<2> index;

  TACC_DEVICE void operator()(int64_t i) const {
    int64_t offsets[2];
    index.Offsets(i, offsets);
    to[offsets[1]] = from == nullptr ? U() : from[offsets[0]];
  }
};

template <typename U>
struct CopyDenseUnit {
  const U* from;
  U* to;

  TACC_DEVICE void operator()(int64_t i) const { to[i] = from == nullptr ? U() : from[i]; }
};

constexpr int64_t kTile = 32;
constexpr int kTransposeTeam = 256;

// The last two dims are a plane of rows x columns whose rows are dense in `from` (rows' stride 1) and whose columns are
// dense in `to`: tiles go through shared memory, so that both sides are read and written along what is dense.
template <typename U>
struct TransposeTile {
  const U* from;
  U* to;
  Strided<2> outer;  // the dims before
  int64_t rows, columns, column_stride_from, row_stride_to;

  TACC_DEVICE void operator()(Team& team, int64_t index) const {
    U* tile = team.shared<U>();  // [column of the plane][row], one more a column: no bank conflicts
    const int64_t row_tiles = (rows + kTile - 1) / kTile, column_tiles = (columns + kTile - 1) / kTile;
    const int64_t column0 = index % column_tiles * kTile, row0 = index / column_tiles % row_tiles * kTile;
    int64_t offsets[2];
    outer.Offsets(index / column_tiles / row_tiles, offsets);
    for (int64_t k = team.rank(); k < kTile * kTile; k += team.size()) {
      const int64_t row = row0 + k % kTile, column = column0 + k / kTile;
      if (row < rows && column < columns)
        tile[k / kTile * (kTile + 1) + k % kTile] = from[offsets[0] + row + column * column_stride_from];
    }
    team.Sync();
    for (int64_t k = team.rank(); k < kTile * kTile; k += team.size()) {
      const int64_t row = row0 + k / kTile, column = column0 + k % kTile;
      if (row < rows && column < columns)
        to[offsets[1] + row * row_stride_to + column] = tile[k % kTile * (kTile + 1) + k / kTile];
    }
  }
};

// If the copy is a transposition of planes: brings their other dim next to the last one.
bool MakePlanes(Copy& copy) {
  constexpr int64_t kLeast = 8;  // below, the tiles would be mostly empty
  const int last = copy.dims.rank() - 1;
  if (last < 1 || copy.from == nullptr || copy.to_strides[last] != 1 || copy.from_strides[last] <= 1) return false;
  if (copy.dims[last] < kLeast) return false;
  for (int i = 0; i < last; ++i) {
    if (copy.from_strides[i] != 1 || copy.dims[i] < kLeast) continue;
    for (int j = i; j < last - 1; ++j) {
      std::swap(copy.dims[j], copy.dims[j + 1]);
      std::swap(copy.from_strides[j], copy.from_strides[j + 1]);
      std::swap(copy.to_strides[j], copy.to_strides[j + 1]);
    }
    return true;
  }
  return false;
}

template <typename U>
void CopyPlanes(const Copy& copy) {
  const int rank = copy.dims.rank();
  const auto outer = [&](const Dims& dims) { return Dims(dims.begin(), dims.begin() + rank - 2); };
  const int64_t rows = copy.dims[rank - 2], columns = copy.dims[rank - 1];
  const int64_t tiles = ((rows + kTile - 1) / kTile) * ((columns + kTile - 1) / kTile);
  ForEachTeam<kTransposeTeam>(copy.dims.Product(0, rank - 2) * tiles, kTransposeTeam,
                              kTile * (kTile + 1) * static_cast<int64_t>(sizeof(U)),
                              TransposeTile<U>{static_cast<const U*>(copy.from),
                                               static_cast<U*>(copy.to),
                                               {outer(copy.dims), {outer(copy.from_strides), outer(copy.to_strides)}},
                                               rows,
                                               columns,
                                               copy.from_strides[rank - 1],
                                               copy.to_strides[rank - 2]});
}

template <typename U>
void CopyUnits(const Copy& copy) {
  const U* from = static_cast<const U*>(copy.from);
  U* to = static_cast<U*>(copy.to);
  const int rank = copy.dims.rank();
  const bool dense = rank == 0 || (rank == 1 && copy.to_strides[0] == 1 && copy.from_strides[0] == 1);
  if (dense) return ForEach(copy.dims.Product(), CopyDenseUnit<U>{from, to});
  ForEach(copy.dims.Product(), CopyUnit<U>{from, to, {copy.dims, {copy.from_strides, copy.to_strides}}});
}

// zeros if from is null.
void CopyOrZero(const Dims& dims, int64_t element_bytes, const void* from, const Strides& from_strides, void* to,
                const Strides& to_strides) {
  TACC_KERNEL_CHECK(from_strides.rank() == dims.rank() && to_strides.rank() == dims.rank());
  if (dims.Product() == 0) return;
  Copy copy = Merged(dims, element_bytes, from, from_strides, to, to_strides);
  Widen(copy);
  const bool planes = MakePlanes(copy);
  switch (copy.unit) {
    case 1:
      return planes ? CopyPlanes<uint8_t>(copy) : CopyUnits<uint8_t>(copy);
    case 2:
      return planes ? CopyPlanes<uint16_t>(copy) : CopyUnits<uint16_t>(copy);
    case 4:
      return planes ? CopyPlanes<uint32_t>(copy) : CopyUnits<uint32_t>(copy);
    case 8:
      return planes ? CopyPlanes<uint64_t>(copy) : CopyUnits<uint64_t>(copy);
    case 16:
      return CopyUnits<Bytes16>(copy);
    default:
      TACC_KERNEL_CHECK(element_bytes == 1 || element_bytes == 2 || element_bytes == 4 || element_bytes == 8);
  }
}

void Zero(const Dims& dims, int64_t element_bytes, void* to, const Strides& to_strides) {
  CopyOrZero(dims, element_bytes, nullptr, to_strides, to, to_strides);
}

// Of x, along dim, from `begin` on.
void ZeroPart(const TensorView& x, int dim, int64_t begin, int64_t end) {
  const Strides strides = DenseStrides(x.dims);
  Dims part = x.dims;
  part[dim] = end - begin;
  Zero(part, SizeOf(x.dtype), x.as<char>() + begin * strides[dim] * SizeOf(x.dtype), strides);
}

void CopyBytes(const void* from, void* to, int64_t bytes) {
  if (from == to || bytes == 0) return;
  // What does not fill the last unit is copied for itself.
  const int64_t whole = bytes / 16 * 16;
  CopyOrZero({whole}, 1, from, {1}, to, {1});
  CopyOrZero({bytes - whole}, 1, static_cast<const char*>(from) + whole, {1}, static_cast<char*>(to) + whole, {1});
}

void StridedCopy(const Dims& dims, int64_t element_bytes, const void* from, const Strides& from_strides, void* to,
                 const Strides& to_strides) {
  TACC_KERNEL_CHECK(dims.Product() == 0 || from != nullptr);
  CopyOrZero(dims, element_bytes, from, from_strides, to, to_strides);
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
  StridedCopy(y.dims, SizeOf(x.dtype), x.as<char>() + start * from[dim] * SizeOf(x.dtype), from, y.data,
              DenseStrides(y.dims));
}

void Concat(const std::vector<TensorView>& xs, int dim, const TensorView& y) {
  const Strides to = DenseStrides(y.dims);
  int64_t position = 0;
  for (const TensorView& x : xs) {
    TACC_KERNEL_CHECK(x.dtype == y.dtype && dim < x.dims.rank() && position + x.dims[dim] <= y.dims[dim]);
    StridedCopy(x.dims, SizeOf(x.dtype), x.data, DenseStrides(x.dims),
                y.as<char>() + position * to[dim] * SizeOf(y.dtype), to);
    position += x.dims[dim];
  }
  TACC_KERNEL_CHECK(position == y.dims[dim]);
}

void Pad(const TensorView& x, int dim, int64_t low, const TensorView& y) {
  TACC_KERNEL_CHECK(x.dtype == y.dtype && dim < x.dims.rank() && low >= 0 && low + x.dims[dim] <= y.dims[dim]);
  const Strides to = DenseStrides(y.dims);
  ZeroPart(y, dim, 0, low);
  ZeroPart(y, dim, low + x.dims[dim], y.dims[dim]);
  StridedCopy(x.dims, SizeOf(x.dtype), x.data, DenseStrides(x.dims), y.as<char>() + low * to[dim] * SizeOf(y.dtype),
              to);
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
  for (int dim = 0; dim < bounds.rank(); ++dim) {
    if (bounds[dim] < x.dims[dim]) ZeroPart(x, dim, bounds[dim], x.dims[dim]);
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

}  // namespace tacc::kernels::cuda

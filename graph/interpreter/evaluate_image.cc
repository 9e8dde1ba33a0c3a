// Images [N,C,spatial...]: convolutions, pools, interpolation, statistics of channels.
#include <algorithm>
#include <cmath>

#include "graph/interpreter/evaluate.h"

namespace tacc::interpreter {
namespace {

using Ints = std::vector<int64_t>;

Ints SpatialOf(const Dims& image) { return Ints(image.begin() + 2, image.end()); }

Dims Join(Dims front, const Dims& back) {
  front.insert(front.end(), back.begin(), back.end());
  return front;
}

// Where in the image each element of each window lies, for windows of the node's attributes.
class Windows {
 public:
  Windows(const Request& r, Ints image, Ints kernel, Ints windows, const Ints& default_stride)
      : image_(std::move(image)), kernel_(std::move(kernel)), windows_(std::move(windows)) {
    const size_t n = image_.size();
    stride_ = r.attr<Ints>("stride", default_stride);
    padding_ = r.attr<Ints>("padding", Ints(n, 0));
    dilation_ = r.attr<Ints>("dilation", Ints(n, 1));
  }

  // visit(window, element of the kernel, place in the image), but for elements in the padding.
  void ForEach(const std::function<void(const Dims&, const Dims&, const Dims&)>& visit) const {
    ForEachIndex(windows_, [&](const Dims& window) {
      ForEachIndex(kernel_, [&](const Dims& k) {
        Dims at(k.size());
        for (size_t i = 0; i < k.size(); ++i) {
          at[i] = window[i] * stride_[i] - padding_[i] + k[i] * dilation_[i];
          if (at[i] < 0 || at[i] >= image_[i]) return;
        }
        visit(window, k, at);
      });
    });
  }

 private:
  Ints image_, kernel_, windows_, stride_, padding_, dilation_;
};

// visit(x's index, w's, y's) for each product of a convolution of x [N,C,...] by w [O,C/G,...] to y [N,O,...].
void ForEachProduct(const Request& r, const Dims& x, const Dims& w, const Dims& y,
                    const std::function<void(const Dims&, const Dims&, const Dims&)>& visit) {
  const Windows windows(r, SpatialOf(x), SpatialOf(w), SpatialOf(y), Ints(x.size() - 2, 1));
  const int64_t of_group = w[1], groups = of_group == 0 ? 1 : x[1] / of_group;
  windows.ForEach([&](const Dims& window, const Dims& k, const Dims& at) {
    ForEachIndex({y[0], y[1], of_group}, [&](const Dims& index) {
      const int64_t n = index[0], o = index[1], c = index[2], group = o / (y[1] / groups);
      visit(Join({n, group * of_group + c}, at), Join({o, c}, k), Join({n, o}, window));
    });
  });
}

void AddBias(const Request& r, Array& image) {
  if (r.in.size() < 3) return;
  ForEachIndex(image.dims, [&](const Dims& index) { image.at(index) += r.in[2]->at({index[1]}); });
}

Results Convolution(const Request& r) {
  Array y = r.NewResult(0);
  ForEachProduct(r, r.in[0]->dims, r.in[1]->dims, y.dims,
                 [&](const Dims& x, const Dims& w, const Dims& to) { y.at(to) += r.in[0]->at(x) * r.in[1]->at(w); });
  AddBias(r, y);
  return {std::move(y)};
}

Results ConvolutionTransposed(const Request& r) {
  Array x = r.NewResult(0);
  ForEachProduct(r, x.dims, r.in[1]->dims, r.in[0]->dims,
                 [&](const Dims& to, const Dims& w, const Dims& y) { x.at(to) += r.in[0]->at(y) * r.in[1]->at(w); });
  AddBias(r, x);
  return {std::move(x)};
}

Results ConvolutionGradWeight(const Request& r) {
  Array dw = r.NewResult(0);
  ForEachProduct(r, r.in[1]->dims, dw.dims, r.in[0]->dims,
                 [&](const Dims& x, const Dims& to, const Dims& dy) { dw.at(to) += r.in[0]->at(dy) * r.in[1]->at(x); });
  return {std::move(dw)};
}

// The place of an element among the spatial ones.
double PlaceOf(const Dims& at, const Ints& image) {
  double place = 0;
  for (size_t d = 0; d < at.size(); ++d) place = place * static_cast<double>(image[d]) + static_cast<double>(at[d]);
  return place;
}

Windows PoolWindows(const Request& r, const Ints& image, const Ints& windows) {
  return Windows(r, image, r.attr<Ints>("kernel"), windows, r.attr<Ints>("kernel"));
}

Results MaxPool(const Request& r) {
  const Array& x = *r.in[0];
  Array y = r.NewResult(0, -INFINITY), indices = r.NewResult(1, -1);
  const Ints image = SpatialOf(x.dims);
  const Windows windows = PoolWindows(r, image, SpatialOf(y.dims));
  ForEachIndex({x.dims[0], x.dims[1]}, [&](const Dims& plane) {
    windows.ForEach([&](const Dims& window, const Dims&, const Dims& at) {
      double& largest = y.at(Join(plane, window));
      double& index = indices.at(Join(plane, window));
      const double value = x.at(Join(plane, at));
      if (index >= 0 && (std::isnan(largest) || !(value > largest || std::isnan(value)))) return;
      largest = value;
      index = PlaceOf(at, image);
    });
  });
  return {std::move(y), std::move(indices)};
}

// A window gives its gradient to the one of its elements that has its index.
Results MaxPoolGrad(const Request& r) {
  const Array &dy = *r.in[0], &indices = *r.in[1];
  Array dx = r.NewResult(0);
  const Ints image = SpatialOf(dx.dims);
  const Windows windows = PoolWindows(r, image, SpatialOf(dy.dims));
  ForEachIndex({dx.dims[0], dx.dims[1]}, [&](const Dims& plane) {
    windows.ForEach([&](const Dims& window, const Dims&, const Dims& at) {
      if (indices.at(Join(plane, window)) == PlaceOf(at, image)) dx.at(Join(plane, at)) += dy.at(Join(plane, window));
    });
  });
  return {std::move(dx)};
}

// Of one element of one dim of a resampled image: the elements that it is made of, with their weights.
using Parts = std::vector<std::pair<int64_t, double>>;

// Of each element of a dim of average pools: the mean of a window.
std::vector<Parts> Means(const Request& r, size_t dim, int64_t in, int64_t out) {
  std::vector<Parts> elements(out);
  for (int64_t p = 0; p < out; ++p) {
    int64_t begin = p * in / out, end = ((p + 1) * in + out - 1) / out, count = end - begin;  // adaptive
    if (r.node->attrs.count("kernel") > 0) {
      const Ints kernel = r.attr<Ints>("kernel"), stride = r.attr<Ints>("stride", kernel);
      const int64_t padding = r.attr<Ints>("padding", Ints(kernel.size(), 0))[dim];
      begin = p * stride[dim] - padding;
      end = std::min(begin + kernel[dim], in + padding);
      count = end - begin;
      begin = std::max<int64_t>(begin, 0), end = std::min(end, in);
      if (!r.attr<bool>("count_include_pad", true)) count = end - begin;
      if (r.node->attrs.count("divisor") > 0) count = dim == 0 ? r.attr<int64_t>("divisor") : 1;
    }
    for (int64_t i = begin; i < end; ++i) elements[p].push_back({i, 1 / static_cast<double>(count)});
  }
  return elements;
}

// The same of interpolation.
std::vector<Parts> Between(const Request& r, size_t dim, int64_t in, int64_t out) {
  const std::string mode = r.attr<std::string>("mode");
  const bool aligned = r.attr<bool>("align_corners");
  double scale = static_cast<double>(in) / static_cast<double>(out);
  if (r.node->attrs.count("scales") > 0) scale = 1 / r.attr<std::vector<double>>("scales")[dim];
  if (aligned) scale = out > 1 ? static_cast<double>(in - 1) / static_cast<double>(out - 1) : 0;
  std::vector<Parts> elements(out);
  for (int64_t p = 0; p < out; ++p) {
    const auto add = [&](int64_t i, double weight) {
      elements[p].push_back({std::clamp<int64_t>(i, 0, in - 1), weight});
    };
    const auto at = static_cast<double>(p);
    // Nearest elements as PyTorch finds them, by a scale in f32.
    if (mode == "nearest") {
      add(in == out ? p : static_cast<int64_t>(std::floor(static_cast<float>(at) * static_cast<float>(scale))), 1);
    } else if (mode == "nearest_exact") {
      add(static_cast<int64_t>(std::floor(static_cast<float>((at + 0.5) * static_cast<float>(scale)))), 1);
    } else {
      double source = aligned ? scale * at : scale * (at + 0.5) - 0.5;
      if (mode == "linear") source = std::max(source, 0.0);
      const double first = std::floor(source), t = source - first;
      const auto i = static_cast<int64_t>(first);
      if (mode == "linear") {
        add(i, 1 - t);
        add(i + 1, t);
        continue;
      }
      const double a = -0.75, u = 1 - t;
      const auto near = [&](double x) { return ((a + 2) * x - (a + 3)) * x * x + 1; };
      const auto far = [&](double x) { return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a; };
      add(i - 1, far(t + 1));
      add(i, near(t));
      add(i + 1, near(u));
      add(i + 2, far(u + 1));
    }
  }
  return elements;
}

using PartsOfDim = std::vector<Parts> (*)(const Request& r, size_t dim, int64_t in, int64_t out);

// visit(element of the image [N,C,in...], element of the resampled one, weight).
void ForEachPart(const Request& r, PartsOfDim parts_of, const Dims& image, const Dims& resampled,
                 const std::function<void(const Dims&, const Dims&, double)>& visit) {
  std::vector<std::vector<Parts>> dims;
  for (size_t d = 2; d < image.size(); ++d) dims.push_back(parts_of(r, d - 2, image[d], resampled[d]));
  ForEachIndex(resampled, [&](const Dims& to) {
    Dims counts;
    for (size_t d = 0; d < dims.size(); ++d) counts.push_back(static_cast<int64_t>(dims[d][to[d + 2]].size()));
    ForEachIndex(counts, [&](const Dims& part) {
      Dims from = to;
      double weight = 1;
      for (size_t d = 0; d < dims.size(); ++d) {
        const auto& [i, of_dim] = dims[d][to[d + 2]][part[d]];
        from[d + 2] = i;
        weight *= of_dim;
      }
      visit(from, to, weight);
    });
  });
}

Evaluator Resample(PartsOfDim parts_of) {
  return [parts_of](const Request& r) -> Results {
    Array y = r.NewResult(0);
    ForEachPart(r, parts_of, r.in[0]->dims, y.dims,
                [&](const Dims& from, const Dims& to, double weight) { y.at(to) += weight * r.in[0]->at(from); });
    return {std::move(y)};
  };
}

Evaluator ResampleGrad(PartsOfDim parts_of) {
  return [parts_of](const Request& r) -> Results {
    Array dx = r.NewResult(0);
    ForEachPart(r, parts_of, dx.dims, r.in[0]->dims,
                [&](const Dims& to, const Dims& from, double weight) { dx.at(to) += weight * r.in[0]->at(from); });
    return {std::move(dx)};
  };
}

// Where among numbers of channels, [C] or [G,C], that is of an element of x.
Dims OfChannel(const Array& numbers, const Array& x, const Dims& index) {
  if (numbers.dims.size() == 1) return {index[1]};
  return {index[0] / (x.dims[0] / numbers.dims[0]), index[1]};
}

Results ChannelSums(const Request& r) {
  const Array &x = *r.in[0], &z = *r.in.back();
  Array sums = r.NewResult(0), products = r.NewResult(1);
  ForEachIndex(x.dims, [&](const Dims& index) {
    sums.at(OfChannel(sums, x, index)) += x.at(index);
    products.at(OfChannel(sums, x, index)) += x.at(index) * z.at(index);
  });
  return {std::move(sums), std::move(products)};
}

Results ChannelAffine(const Request& r) {
  Array y = r.NewResult(0);
  ForEachIndex(y.dims, [&](const Dims& index) {
    const Dims of = OfChannel(*r.in[1], y, index);
    y.at(index) = r.in[1]->at(of) * r.in[0]->at(index) + (r.in.size() > 2 ? r.in[2]->at(of) : 0);
  });
  return {std::move(y)};
}

Results ChannelAffinePair(const Request& r) {
  Array y = r.NewResult(0);
  ForEachIndex(y.dims, [&](const Dims& index) {
    const Dims of = OfChannel(*r.in[1], y, index);
    y.at(index) = r.in[1]->at(of) * r.in[0]->at(index) + r.in[3]->at(of) * r.in[2]->at(index) +
                  (r.in.size() > 4 ? r.in[4]->at(of) : 0);
  });
  return {std::move(y)};
}

Results BatchMoments(const Request& r) {
  double count = 1;
  for (int64_t d : r.attr<Ints>("extents")) count *= static_cast<double>(d);
  const double momentum = r.attr<double>("momentum");
  Results results;
  for (size_t i = 0; i < r.in.size(); ++i) results.push_back(r.NewResult(static_cast<int>(i)));
  for (int64_t c = 0; c < r.in[0]->size(); ++c) {
    const double mean = r.in[0]->values[c] / count;
    const double variance = std::max(r.in[1]->values[c] / count - mean * mean, 0.0);
    results[0].values[c] = mean;
    results[1].values[c] = variance;
    if (r.in.size() == 2) continue;
    results[2].values[c] = (1 - momentum) * r.in[2]->values[c] + momentum * mean;
    results[3].values[c] = (1 - momentum) * r.in[3]->values[c] + momentum * variance * count / (count - 1);
  }
  return results;
}

}  // namespace

void AddImageEvaluators(EvaluatorTable& table) {
  table.Add("convolution", Convolution);
  table.Add("convolution_transposed", ConvolutionTransposed);
  table.Add("convolution_grad_weight", ConvolutionGradWeight);
  table.Add("max_pool", MaxPool);
  table.Add("max_pool_grad", MaxPoolGrad);
  table.Add("avg_pool", Resample(Means));
  table.Add("avg_pool_grad", ResampleGrad(Means));
  table.Add("interpolate", Resample(Between));
  table.Add("interpolate_grad", ResampleGrad(Between));
  table.Add("channel_sums", ChannelSums);
  table.Add("channel_affine", ChannelAffine);
  table.Add("channel_affine_pair", ChannelAffinePair);
  table.Add("batch_moments", BatchMoments);
}

}  // namespace tacc::interpreter

// Kriging: the expected residual of a reference model between measurements (aicb/kernels/fitting/kriging.py).
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace aicb {

// Matérn correlation of smoothness 3/2 with fixed points.
class Matern {
  public:
    // `coordinates` is [points, lengths] by rows; a length is what a coordinate is divided by.
    Matern(const std::vector<double>& coordinates, const std::vector<double>& lengths);

    std::size_t points() const { return count_; }
    std::size_t dimensions() const { return lengths_.size(); }
    // [points] correlations with a place of [dimensions].
    void with(const double* place, double* correlations) const;
    // [points] correlations of the last of the first `points` points with each of these.
    void among_first(std::size_t points, double* correlations) const;

  private:
    void with_first(std::size_t points, const double* scaled_place, double* correlations) const;

    std::vector<double> lengths_;
    std::size_t count_;
    std::vector<double> scaled_;  // [dimensions, points]
};

// What all shapes share, and what is peculiar to a shape and its nearest relatives: a share of the variance each.
class Correlation {
  public:
    Correlation(Matern common, std::optional<Matern> own, double own_share);

    std::size_t points() const { return common_.points(); }
    std::size_t dimensions() const { return common_.dimensions(); }
    void with(const double* place, double* correlations) const;
    // [points, points] of the points with each other, by rows.
    void among_points(double* correlations) const;

  private:
    void add_own(const std::vector<double>& own, double* correlations) const;

    Matern common_;
    std::optional<Matern> own_;
    double own_share_;
};

class Kriging {
  public:
    // `weights` is [points].
    Kriging(Correlation correlation, std::vector<double> weights, double mean);

    std::size_t dimensions() const { return correlation_.dimensions(); }
    // Expected residual at a place of [dimensions].
    double at(const double* place) const;

  private:
    Correlation correlation_;
    std::vector<double> weights_;
    double mean_;
};

}  // namespace aicb

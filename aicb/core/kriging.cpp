#include "kriging.hpp"

#include <cmath>
#include <utility>

namespace aicb {

Matern::Matern(const std::vector<double>& coordinates, const std::vector<double>& lengths)
    : lengths_(lengths), count_(coordinates.size() / lengths.size()), scaled_(coordinates.size()) {
    for (std::size_t point = 0; point < count_; ++point) {
        for (std::size_t i = 0; i < lengths.size(); ++i) {
            scaled_[i * count_ + point] = coordinates[point * lengths.size() + i] / lengths[i];
        }
    }
}

void Matern::with(const double* place, double* correlations) const {
    std::vector<double> scaled(dimensions());
    for (std::size_t i = 0; i < scaled.size(); ++i) scaled[i] = place[i] / lengths_[i];
    with_first(count_, scaled.data(), correlations);
}

void Matern::among_first(std::size_t points, double* correlations) const {
    std::vector<double> scaled(dimensions());
    for (std::size_t i = 0; i < scaled.size(); ++i) scaled[i] = scaled_[i * count_ + points - 1];
    with_first(points, scaled.data(), correlations);
}

void Matern::with_first(std::size_t points, const double* scaled_place, double* correlations) const {
    for (std::size_t point = 0; point < points; ++point) correlations[point] = 0.0;
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
        const double own = scaled_place[i], *coordinates = &scaled_[i * count_];
        for (std::size_t point = 0; point < points; ++point) {
            const double gap = own - coordinates[point];
            correlations[point] += gap * gap;
        }
    }
    for (std::size_t point = 0; point < points; ++point) {
        const double distance = std::sqrt(3.0 * correlations[point]);
        correlations[point] = (1.0 + distance) * std::exp(-distance);
    }
}

Correlation::Correlation(Matern common, std::optional<Matern> own, double own_share)
    : common_(std::move(common)), own_(std::move(own)), own_share_(own_share) {}

void Correlation::with(const double* place, double* correlations) const {
    common_.with(place, correlations);
    if (!own_) return;
    std::vector<double> own(points());
    own_->with(place, own.data());
    add_own(own, correlations);
}

void Correlation::among_points(double* correlations) const {
    std::vector<double> own;
    for (std::size_t row = 0; row < points(); ++row) {
        double* const found = correlations + row * points();
        common_.among_first(row + 1, found);
        if (own_) {
            own.resize(row + 1);
            own_->among_first(row + 1, own.data());
            add_own(own, found);
        }
        for (std::size_t column = 0; column < row; ++column) correlations[column * points() + row] = found[column];
    }
}

void Correlation::add_own(const std::vector<double>& own, double* correlations) const {
    for (std::size_t point = 0; point < own.size(); ++point) {
        correlations[point] = (1.0 - own_share_) * correlations[point] + own_share_ * own[point];
    }
}

Kriging::Kriging(Correlation correlation, std::vector<double> weights, double mean)
    : correlation_(std::move(correlation)), weights_(std::move(weights)), mean_(mean) {}

double Kriging::at(const double* place) const {
    std::vector<double> correlations(weights_.size());
    correlation_.with(place, correlations.data());
    double residual = mean_;
    for (std::size_t point = 0; point < weights_.size(); ++point) residual += correlations[point] * weights_[point];
    return residual;
}

}  // namespace aicb

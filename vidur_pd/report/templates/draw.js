const looks = JSON.parse(document.getElementById("looks").textContent);
const isDark = window.matchMedia("(prefers-color-scheme: dark)");
const options = {responsive: true, displaylogo: false, displayModeBar: "hover",
  modeBarButtons: [["toImage", "resetScale2d"]]};

function draw(card) {
  const figure = JSON.parse(document.getElementById("data-" + card.id).textContent);
  const layout = {...figure.layout, template: looks[isDark.matches ? "dark" : "light"]};
  if (card.clientWidth < 420) {  // a long axis title would take the room of the data
    layout.margin = {l: 44, r: 6, t: 34, b: 40};
    layout.font = {size: 10};
  }
  return Plotly.react(card, figure.data, layout, options).then(() => {
    // The name of the chart says what its pieces do not: hundreds of numbers at axes, one by one.
    card.querySelectorAll("svg.main-svg").forEach(svg => svg.setAttribute("aria-hidden", "true"));
  });
}

const cards = [...document.querySelectorAll(".plot")];
cards.forEach(draw);
isDark.addEventListener("change", () => cards.forEach(draw));

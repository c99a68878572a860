// Axes: nice ticks and numbers in words, for linear and logarithmic scales.

function makeScale(log, low, high, from, to) {
  const forward = log ? Math.log10 : (v) => v;
  const backward = log ? (v) => 10 ** v : (v) => v;
  const a = forward(low);
  const span = forward(high) - a || 1;
  return {
    low,
    high,
    map: (v) => from + ((forward(v) - a) / span) * (to - from),
    invert: (p) => backward(a + ((p - from) / (to - from)) * span),
    ticks: (count) => (log ? logTicks(low, high, count) : linearTicks(low, high, count)),
  };
}

function linearTicks(low, high, count) {
  const rough = (high - low) / Math.max(count, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * ([1, 2, 5].find((m) => m * power >= rough) || 10);
  const ticks = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) ticks.push(i * step);
  return ticks.map((v) => Number(v.toPrecision(12)));
}

function logTicks(low, high, count) {
  const first = Math.floor(Math.log10(low));
  const last = Math.ceil(Math.log10(high));
  const every = Math.max(1, Math.ceil((last - first) / count));
  const within = (v) => v >= low * (1 - 1e-9) && v <= high * (1 + 1e-9);
  const decades = [];
  for (let e = Math.ceil(first / every) * every; e <= last; e += every) decades.push(10 ** e);
  const shown = decades.filter(within);
  if (shown.length > 2) return shown;
  const between = [];
  for (let e = first; e <= last; e++) for (const m of [1, 2, 5]) between.push(Number(`${m}e${e}`));
  const fine = between.filter(within);
  return fine.length > 1 ? fine : linearTicks(low, high, count);
}

// Four significant digits, without the noise of binary fractions: 0.9722, 1,437, 3.1e-7.
function inWords(value, digits = 4) {
  if (value === null || value === undefined) return "not measured";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size < 1e-3 || size >= 1e6) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split("e");
    return `${Number(mantissa)}e${Number(exponent)}`;
  }
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumFractionDigits: 10 });
}

// The words of all ticks of an axis, with as many digits as tell them apart.
function tickWords(ticks) {
  for (let digits = 4; digits < 12; digits++) {
    const words = ticks.map((v) => inWords(v, digits));
    if (new Set(words).size === words.length) return words;
  }
  return ticks.map(String);
}

// The range of the values with a little air; on a logarithmic axis the air is a factor.
function padded(low, high, log) {
  if (log) {
    const air = Math.max((high / low) ** 0.04, 1.05);
    return [low / air, high * air];
  }
  const air = (high - low) * 0.04 || Math.abs(high) * 0.04 || 1;
  return [low - air, high + air];
}

(function () {
  var root = document.documentElement, button = document.getElementById("theme");
  var dark = window.matchMedia("(prefers-color-scheme: dark)");
  function isDark() { return root.dataset.theme ? root.dataset.theme === "dark" : dark.matches; }
  function label() { button.textContent = isDark() ? "Light theme" : "Dark theme"; }
  button.hidden = false;
  button.addEventListener("click", function () { root.dataset.theme = isDark() ? "light" : "dark"; label(); });
  dark.addEventListener("change", label);
  label();
  function reveal() {
    var target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    var around = target && target.closest("details");
    if (around && !around.open) { around.open = true; target.scrollIntoView(); }
  }
  window.addEventListener("hashchange", reveal);
  reveal();
})();

"""The names of `foreshape.apps.forecast` and their files: a list for type checkers and for the imports at first use, never run itself."""

from foreshape.apps.forecast.cards import CARDS as CARDS
from foreshape.apps.forecast.cards import Card as Card
from foreshape.apps.forecast.forecast_results import Advice as Advice
from foreshape.apps.forecast.forecast_results import Forecast as Forecast
from foreshape.apps.forecast.forecast_results import Largest as Largest
from foreshape.apps.forecast.forecast_results import PeakTensor as PeakTensor
from foreshape.apps.forecast.forecast_results import StepPeak as StepPeak
from foreshape.apps.forecast.forecasting import forecast as forecast

"""The estimators against scikit-learn's own checks."""
from sklearn.utils.estimator_checks import parametrize_with_checks
from mcover.sklearn import *

@parametrize_with_checks([MCoverPerceptronClassifier(),MCoverCommitteeClassifier(),MCoverMLPClassifier(),MCoverMLPRegressor()])
def test_checks(estimator, check):
    check(estimator)
